//! KV events and their msgpack bytes, in each of the shapes that engines of different ages send.
//! Never numbers, keeps or sends a batch: `publisher` does.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rmp::encode;

/// A run of blocks stored one after the other, as one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredRun {
    pub(super) hashes: Vec<u64>,
    pub(super) parent: Option<u64>,
    pub(super) tokens: Vec<u32>,
    pub(super) block_size: u32,
    /// Given only where the run starts the chain of a salted prompt.
    pub(super) salt: Option<String>,
    pub(super) adapter: Option<String>,
}

impl StoredRun {
    fn has_keys(&self) -> bool {
        self.salt.is_some() || self.adapter.is_some()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Stored(StoredRun),
    Removed(Vec<u64>),
    Cleared,
    /// Blocks that came to the host's memory: their hashes and size, without their tokens.
    HostStored {
        hashes: Vec<u64>,
        block_size: u32,
    },
    HostRemoved(Vec<u64>),
}

/// How a batch of events is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventForm {
    /// The batch and its events are arrays.
    #[default]
    Arrays,
    /// The batch is an array, its events are maps.
    Maps,
    /// The batch is a map, its events are maps.
    MapBatch,
}

/// How a block hash is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HashForm {
    /// An unsigned integer of 64 bits.
    #[default]
    Int,
    /// A byte string of 32 bytes that ends with those 64 bits, big-endian.
    Bytes,
}

/// Whether events say which group of the cache they are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheGroups {
    #[default]
    Untold,
    /// Group 0, of full attention: the only one of a model without windows or state.
    FullAttention,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Form {
    pub(super) events: EventForm,
    pub(super) hashes: HashForm,
    pub(super) groups: CacheGroups,
}

const GPU: &str = "GPU";
const CPU: &str = "CPU";
const GROUP: u64 = 0;
const GROUP_KIND: &str = "full_attention";

/// A batch's payload, stamped with the present time.
pub(super) fn batch(events: &[Event], dp_rank: u32, form: Form) -> Bytes {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since_epoch.map_or(0.0, |elapsed| elapsed.as_secs_f64());
    batch_at(seconds, events, dp_rank, form)
}

fn batch_at(seconds: f64, events: &[Event], dp_rank: u32, form: Form) -> Bytes {
    let mut payload = Payload {
        bytes: Vec::with_capacity(64),
        form,
    };
    let named = form.events == EventForm::MapBatch;
    if named {
        payload.map(3);
        payload.text("ts");
    } else {
        payload.array(3);
    }
    payload.float(seconds);
    if named {
        payload.text("events");
    }
    payload.array(events.len());
    for event in events {
        payload.event(event);
    }
    if named {
        payload.text("data_parallel_rank");
    }
    payload.number(u64::from(dp_rank));
    Bytes::from(payload.bytes)
}

/// A msgpack writer. Writing to memory cannot fail, so the results of the encoder say nothing.
struct Payload {
    bytes: Vec<u8>,
    form: Form,
}

impl Payload {
    fn event(&mut self, event: &Event) {
        let maps = self.form.events != EventForm::Arrays;
        match (event, maps) {
            (Event::Stored(run), false) => self.stored_array(run, GPU),
            (Event::Stored(run), true) => self.stored_map(run, GPU),
            (Event::Removed(hashes), _) => self.removed(hashes, GPU),
            (Event::HostRemoved(hashes), _) => self.removed(hashes, CPU),
            (Event::HostStored { hashes, block_size }, _) => {
                let run = StoredRun {
                    hashes: hashes.clone(),
                    parent: None,
                    tokens: Vec::new(),
                    block_size: *block_size,
                    salt: None,
                    adapter: None,
                };
                if maps {
                    self.stored_map(&run, CPU);
                } else {
                    self.stored_array(&run, CPU);
                }
            }
            (Event::Cleared, false) => {
                self.array(1);
                self.text("AllBlocksCleared");
            }
            (Event::Cleared, true) => {
                self.map(1);
                self.field("type", "AllBlocksCleared");
            }
        }
    }

    fn removed(&mut self, hashes: &[u64], medium: &str) {
        let grouped = self.grouped();
        if self.form.events == EventForm::Arrays {
            self.array(3 + usize::from(grouped));
            self.text("BlockRemoved");
            self.hashes(hashes);
            self.text(medium);
        } else {
            self.map(3 + u32::from(grouped));
            self.field("type", "BlockRemoved");
            self.text("block_hashes");
            self.hashes(hashes);
            self.field("medium", medium);
            if grouped {
                self.text("group_idx");
            }
        }
        if grouped {
            self.number(GROUP);
        }
    }

    fn stored_array(&mut self, run: &StoredRun, medium: &str) {
        let grouped = self.grouped();
        self.array(match (grouped, run.has_keys()) {
            (true, _) => 11,
            (false, true) => 9,
            (false, false) => 8,
        });
        self.text("BlockStored");
        self.hashes(&run.hashes);
        self.optional_hash(run.parent);
        self.tokens(&run.tokens);
        self.number(u64::from(run.block_size));
        self.nil(); // lora_id
        self.text(medium);
        match &run.adapter {
            Some(adapter) => self.text(adapter),
            None => self.nil(),
        }
        if run.has_keys() {
            self.extra_keys(run);
        } else if grouped {
            self.nil(); // extra_keys
        }
        if grouped {
            self.number(GROUP);
            self.text(GROUP_KIND);
        }
    }

    fn stored_map(&mut self, run: &StoredRun, medium: &str) {
        let grouped = self.grouped();
        let more = [run.adapter.is_some(), run.has_keys(), grouped, grouped];
        self.map(6 + more.map(u32::from).iter().sum::<u32>());
        self.field("type", "BlockStored");
        self.text("block_hashes");
        self.hashes(&run.hashes);
        self.text("parent_block_hash");
        self.optional_hash(run.parent);
        self.text("token_ids");
        self.tokens(&run.tokens);
        self.text("block_size");
        self.number(u64::from(run.block_size));
        self.field("medium", medium);
        if let Some(adapter) = &run.adapter {
            self.field("lora_name", adapter);
        }
        if run.has_keys() {
            self.text("extra_keys");
            self.extra_keys(run);
        }
        if grouped {
            self.text("group_idx");
            self.number(GROUP);
            self.field("kv_cache_spec_kind", GROUP_KIND);
        }
    }

    fn grouped(&self) -> bool {
        self.form.groups == CacheGroups::FullAttention
    }

    /// An adapter stands in every block, a salt in the first one; a block without either has no keys.
    fn extra_keys(&mut self, run: &StoredRun) {
        self.array(run.hashes.len());
        for index in 0..run.hashes.len() {
            let salt = run.salt.as_deref().filter(|_| index == 0);
            let keys = || run.adapter.as_deref().into_iter().chain(salt);
            match keys().count() {
                0 => self.nil(),
                count => self.array(count),
            }
            keys().for_each(|key| self.text(key));
        }
    }

    fn hashes(&mut self, hashes: &[u64]) {
        self.array(hashes.len());
        for &hash in hashes {
            self.hash(hash);
        }
    }

    fn hash(&mut self, hash: u64) {
        match self.form.hashes {
            HashForm::Int => self.number(hash),
            HashForm::Bytes => {
                let mut wide = [0x5a; 32];
                wide[24..].copy_from_slice(&hash.to_be_bytes());
                let _ = encode::write_bin(&mut self.bytes, &wide);
            }
        }
    }

    fn optional_hash(&mut self, hash: Option<u64>) {
        match hash {
            Some(hash) => self.hash(hash),
            None => self.nil(),
        }
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        for &token in tokens {
            self.number(u64::from(token));
        }
    }

    fn field(&mut self, name: &str, value: &str) {
        self.text(name);
        self.text(value);
    }

    fn array(&mut self, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let _ = encode::write_array_len(&mut self.bytes, length);
    }

    fn map(&mut self, length: u32) {
        let _ = encode::write_map_len(&mut self.bytes, length);
    }

    fn text(&mut self, text: &str) {
        let _ = encode::write_str(&mut self.bytes, text);
    }

    fn number(&mut self, number: u64) {
        let _ = encode::write_uint(&mut self.bytes, number);
    }

    fn float(&mut self, number: f64) {
        let _ = encode::write_f64(&mut self.bytes, number);
    }

    fn nil(&mut self) {
        let _ = encode::write_nil(&mut self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> StoredRun {
        StoredRun {
            hashes: vec![1, u64::MAX],
            parent: None,
            tokens: vec![7, 300],
            block_size: 1,
            salt: None,
            adapter: None,
        }
    }

    fn check(events: &[Event], form: Form, expected: &[&[u8]]) {
        let written = batch_at(1.5, events, 2, form);
        assert_eq!(written.as_ref(), expected.concat().as_slice());
    }

    const TIME: &[u8] = &[0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0];
    const ON_GPU: &[u8] = b"\xa3GPU";

    #[test]
    fn an_array_batch_has_the_bytes_of_an_engine() {
        let stored: &[&[u8]] = &[
            &[0x93],
            TIME,
            &[0x91, 0x98],
            b"\xabBlockStored",
            &[0x92, 0x01, 0xcf, 255, 255, 255, 255, 255, 255, 255, 255],
            &[0xc0, 0x92, 0x07, 0xcd, 0x01, 0x2c, 0x01, 0xc0],
            ON_GPU,
            &[0xc0, 0x02],
        ];
        check(&[Event::Stored(run())], Form::default(), stored);
    }

    #[test]
    fn removals_and_clears_are_arrays_too() {
        let expected: &[&[u8]] = &[
            &[0x93],
            TIME,
            &[0x92, 0x93],
            b"\xacBlockRemoved",
            &[0x91, 0x09],
            ON_GPU,
            &[0x91],
            b"\xb0AllBlocksCleared",
            &[0x02],
        ];
        check(
            &[Event::Removed(vec![9]), Event::Cleared],
            Form::default(),
            expected,
        );
    }

    #[test]
    fn a_map_batch_names_every_field() {
        let form = Form {
            events: EventForm::MapBatch,
            ..Form::default()
        };
        let expected: &[&[u8]] = &[
            b"\x83\xa2ts",
            TIME,
            b"\xa6events\x91\x81\xa4type\xb0AllBlocksCleared",
            b"\xb2data_parallel_rank\x02",
        ];
        check(&[Event::Cleared], form, expected);
    }

    #[test]
    fn a_salt_stands_in_the_first_block_only() {
        let salted = StoredRun {
            salt: Some("s".to_owned()),
            ..run()
        };
        let written = batch_at(1.5, &[Event::Stored(salted)], 2, Form::default());
        assert!(written.ends_with(b"\xa3GPU\xc0\x92\x91\xa1s\xc0\x02"));
    }

    #[test]
    fn an_adapter_stands_in_every_block() {
        let adapted = StoredRun {
            adapter: Some("l".to_owned()),
            salt: Some("s".to_owned()),
            ..run()
        };
        let written = batch_at(1.5, &[Event::Stored(adapted)], 2, Form::default());
        assert!(written.ends_with(b"\xa3GPU\xa1l\x92\x92\xa1l\xa1s\x91\xa1l\x02"));
    }

    #[test]
    fn a_group_follows_the_keys_of_a_stored_array() {
        let form = Form {
            groups: CacheGroups::FullAttention,
            ..Form::default()
        };
        let written = batch_at(1.5, &[Event::Stored(run())], 2, form);
        let start = [&[0x93], TIME, &[0x91, 0x9b], b"\xabBlockStored"].concat();
        assert!(written.starts_with(&start));
        // No adapter, no keys, group 0.
        assert!(written.ends_with(b"\xa3GPU\xc0\xc0\x00\xaefull_attention\x02"));
    }

    #[test]
    fn a_removed_array_ends_with_its_group() {
        let form = Form {
            groups: CacheGroups::FullAttention,
            ..Form::default()
        };
        let expected: &[&[u8]] = &[
            &[0x93],
            TIME,
            &[0x91, 0x94],
            b"\xacBlockRemoved",
            &[0x91, 0x09],
            ON_GPU,
            &[0x00, 0x02],
        ];
        check(&[Event::Removed(vec![9])], form, expected);
    }

    #[test]
    fn a_group_is_named_in_maps() {
        let form = Form {
            events: EventForm::Maps,
            groups: CacheGroups::FullAttention,
            ..Form::default()
        };
        let tails: [(Event, &[u8]); 2] = [
            (
                Event::Stored(run()),
                b"\xa9group_idx\x00\xb2kv_cache_spec_kind\xaefull_attention\x02",
            ),
            (Event::Removed(vec![9]), b"\xa9group_idx\x00\x02"),
        ];
        for (event, tail) in tails {
            let written = batch_at(1.5, &[event], 2, form);
            assert!(written.ends_with(tail), "{written:?}");
        }
    }

    #[test]
    fn a_block_in_the_hosts_memory_is_told_without_tokens() {
        let stored = Event::HostStored {
            hashes: vec![9],
            block_size: 4,
        };
        let expected: &[&[u8]] = &[
            &[0x93],
            TIME,
            &[0x92, 0x98],
            b"\xabBlockStored",
            &[0x91, 0x09, 0xc0, 0x90, 0x04, 0xc0],
            b"\xa3CPU\xc0",
            &[0x93],
            b"\xacBlockRemoved",
            &[0x91, 0x09],
            b"\xa3CPU",
            &[0x02],
        ];
        let events = [stored, Event::HostRemoved(vec![9])];
        check(&events, Form::default(), expected);
    }

    #[test]
    fn a_byte_hash_ends_with_the_integer_form() {
        let form = Form {
            hashes: HashForm::Bytes,
            ..Form::default()
        };
        let written = batch_at(1.5, &[Event::Removed(vec![0x0102])], 2, form);
        let tail: &[u8] = &[0, 0, 0, 0, 0, 0, 1, 2, 0xa3, b'G', b'P', b'U', 2];
        assert!(written.ends_with(tail));
        assert!(written.windows(2).any(|pair| pair == [0xc4, 32]));
    }
}
