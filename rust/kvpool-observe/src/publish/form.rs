//! `Form`: the encoding of events that a consumer understands.

use std::str::FromStr;

use thiserror::Error;

/// How the fields of an event are arranged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// A map with field names. Engines have written this layout since the middle of 2026.
    #[default]
    Map,
    /// A positional array. Engines wrote this layout before the middle of 2026; some consumers read only
    /// this one.
    Array,
}

/// Which engine's fields and tier names are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang: fewer fields, a separate field for the salt, and no groups.
    Sglang,
}

/// How a digest is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashForm {
    /// The last 8 bytes as an unsigned number, as in vLLM.
    #[default]
    Last8,
    /// The first 8 bytes as a signed number, as in SGLang.
    First8,
    /// The whole digest, as bytes.
    Bytes,
}

/// The form in which events are encoded for a consumer.
///
/// ```
/// use kvpool_observe::publish::{Dialect, Form, HashForm, Layout};
/// let form: Form = "vllm-array".parse()?;
/// assert_eq!(form, Form { layout: Layout::Array, dialect: Dialect::Vllm, hashes: HashForm::Last8 });
/// assert!("json".parse::<Form>().is_err());
/// # Ok::<(), kvpool_observe::publish::UnknownForm>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Form {
    /// How the fields of an event are arranged.
    pub layout: Layout,
    /// Which engine's fields and tier names are used.
    pub dialect: Dialect,
    /// How a digest is encoded.
    pub hashes: HashForm,
}

/// The error for an unknown name of a form.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no form {name:?}: one of {}", Form::NAMES.map(|(name, _)| name).join(", "))]
pub struct UnknownForm {
    /// The name.
    pub name: String,
}

impl Form {
    /// The forms of events that can be selected by a name.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("vllm", Self::of(Layout::Map, Dialect::Vllm, HashForm::Last8)),
        ("vllm-array", Self::of(Layout::Array, Dialect::Vllm, HashForm::Last8)),
        ("vllm-bytes", Self::of(Layout::Map, Dialect::Vllm, HashForm::Bytes)),
        ("vllm-array-bytes", Self::of(Layout::Array, Dialect::Vllm, HashForm::Bytes)),
        ("sglang", Self::of(Layout::Map, Dialect::Sglang, HashForm::First8)),
        ("sglang-array", Self::of(Layout::Array, Dialect::Sglang, HashForm::First8)),
    ];

    const fn of(layout: Layout, dialect: Dialect, hashes: HashForm) -> Self {
        Self { layout, dialect, hashes }
    }

    /// The name of a tier in events. Tier 0 is the device, followed by host memory, disks and remote
    /// stores.
    #[must_use]
    pub const fn medium(self, tier: u8) -> &'static str {
        match (self.dialect, tier) {
            (_, 0) => "GPU",
            (Dialect::Vllm, 1) => "CPU",
            (Dialect::Vllm, _) => "STORAGE",
            (Dialect::Sglang, 1) => "CPU_PINNED",
            (Dialect::Sglang, 2) => "DISK",
            (Dialect::Sglang, _) => "EXTERNAL",
        }
    }
}

impl FromStr for Form {
    type Err = UnknownForm;

    fn from_str(name: &str) -> Result<Self, UnknownForm> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|&(_, form)| form).ok_or_else(|| UnknownForm { name: name.to_owned() })
    }
}
