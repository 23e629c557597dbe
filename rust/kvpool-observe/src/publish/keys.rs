//! `KeyTranslator`: translates the extra keys of a request's blocks to the extra keys of events.
//!
//! | kvpool | events |
//! |---|---|
//! | the adapter's id | `lora_name`, and the first extra key of each block |
//! | salt | an extra key of the first block; in SGLang's form `cache_salt` |
//! | tenant, user | a part of the salt, as `tenant=...;user=...;salt=...` |
//! | multimodal items | extra keys of the blocks that they overlap, with their start |
//!
//! Tenant and user are a part of the salt, so a router that does not know them finds no match, and does
//! not route a request to the blocks of another tenant or user.
//!
//! Bytes that are not UTF-8 are written as hex digits.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::Learned;
use kvpool::ExtraKeys;

use crate::publish::contents::Keys;
use crate::publish::event::{Extra, Label};

/// Translates the extra keys of blocks, one request after the other. It stores the shared keys of the
/// latest request, because the next block usually belongs to the same request.
#[derive(Default)]
pub(crate) struct KeyTranslator {
    latest: Option<(Arc<ExtraKeys>, Arc<Label>)>,
}

fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold(String::new(), |mut text, byte| {
            let _infallible = write!(text, "{byte:02x}");
            text
        }),
    }
}

/// Joins all keys that separate requests with equal tokens (tenant, user and salt) into one salt.
fn salt_of(extra: &ExtraKeys) -> Option<String> {
    let salt = extra.salt.as_deref().map(text);
    let named = |name: &str, value: Option<&[u8]>| value.map(|value| format!("{name}={}", text(value)));
    let parts: Vec<_> = [named("tenant", extra.tenant.as_deref()), named("user", extra.user.as_deref())]
        .into_iter()
        .flatten()
        .collect();
    if parts.is_empty() {
        return salt;
    }
    let salt = salt.map(|salt| format!("salt={salt}"));
    Some(parts.into_iter().chain(salt).collect::<Vec<_>>().join(";"))
}

impl KeyTranslator {
    /// Returns the keys of a block of `block_tokens` tokens; `None` if it has no extra keys.
    pub(crate) fn of(&mut self, learned: &Learned, block_tokens: usize) -> Option<Keys> {
        let extra = learned.extra.as_ref()?;
        let label = match &self.latest {
            Some((of, label)) if Arc::ptr_eq(of, extra) => Arc::clone(label),
            _ => {
                let label = Arc::new(Label {
                    lora_name: extra.adapter.as_ref().map(|adapter| text(&adapter.id)),
                    salt: salt_of(extra),
                    ..Label::default()
                });
                self.latest = Some((Arc::clone(extra), Arc::clone(&label)));
                label
            }
        };
        let mut keys: Vec<_> = label.lora_name.iter().map(|name| Extra::Text(name.clone())).collect();
        let first = learned.first_token as u64;
        let end = first + block_tokens as u64;
        let inside = extra
            .multimodal
            .iter()
            .filter(|item| item.offset < end && item.offset.saturating_add(item.length) > first);
        keys.extend(inside.map(|item| {
            let begins = i128::from(item.offset) - i128::from(first);
            Extra::Item(text(&item.identifier), i64::try_from(begins).unwrap_or(i64::MIN))
        }));
        if first == 0 {
            keys.extend(label.salt.iter().map(|salt| Extra::Text(salt.clone())));
        }
        Some(Keys { extra: (!keys.is_empty()).then(|| keys.into()), label })
    }
}
