//! A reader for the part of `MessagePack` that events use, and for batches in vLLM's map form. It was
//! written from `docs/events.md`.

use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Nil,
    Number(i128),
    Float(f64),
    Text(String),
    Array(Vec<Value>),
    Map(BTreeMap<String, Value>),
}

impl Value {
    pub(crate) fn number(&self) -> i128 {
        let Self::Number(number) = self else { panic!("{self:?} is no number") };
        *number
    }

    pub(crate) fn text(&self) -> &str {
        let Self::Text(text) = self else { panic!("{self:?} is no text") };
        text
    }

    pub(crate) fn array(&self) -> &[Value] {
        let Self::Array(array) = self else { panic!("{self:?} is no array") };
        array
    }

    pub(crate) fn map(&self) -> &BTreeMap<String, Value> {
        let Self::Map(map) = self else { panic!("{self:?} is no map") };
        map
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().expect("a whole value");
        self.0 = rest;
        *head
    }

    fn value(&mut self) -> Value {
        match u8::from_be_bytes(self.take()) {
            tag @ 0..=0x7f => Value::Number(tag.into()),
            tag @ 0x80..=0x8f => self.map(usize::from(tag & 15)),
            tag @ 0x90..=0x9f => self.array(usize::from(tag & 15)),
            tag @ 0xa0..=0xbf => self.text(usize::from(tag & 31)),
            0xc0 => Value::Nil,
            0xcb => Value::Float(f64::from_be_bytes(self.take())),
            0xcc => Value::Number(u8::from_be_bytes(self.take()).into()),
            0xcd => Value::Number(u16::from_be_bytes(self.take()).into()),
            0xce => Value::Number(u32::from_be_bytes(self.take()).into()),
            0xcf => Value::Number(u64::from_be_bytes(self.take()).into()),
            0xd9 => {
                let len = u8::from_be_bytes(self.take());
                self.text(len.into())
            }
            0xdc => {
                let len = u16::from_be_bytes(self.take());
                self.array(len.into())
            }
            0xde => {
                let len = u16::from_be_bytes(self.take());
                self.map(len.into())
            }
            tag => panic!("no event has {tag:02x}"),
        }
    }

    fn text(&mut self, len: usize) -> Value {
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        Value::Text(String::from_utf8(text.to_vec()).expect("UTF-8"))
    }

    fn array(&mut self, len: usize) -> Value {
        Value::Array((0..len).map(|_| self.value()).collect())
    }

    fn map(&mut self, len: usize) -> Value {
        Value::Map((0..len).map(|_| (self.value().text().to_owned(), self.value())).collect())
    }
}

pub(crate) fn events(payload: &[u8]) -> Vec<Value> {
    let mut reader = Reader(payload);
    let batch = reader.value();
    assert!(reader.0.is_empty(), "bytes behind a batch");
    let [Value::Float(_), Value::Array(events), Value::Number(_)] = batch.array() else {
        panic!("{batch:?} is no batch")
    };
    events.clone()
}
