//! Turns the tokens of a prompt into block hashes and chained sequence hashes, bit for bit as engines' companions compute them; it never looks anything up.
//!
//! Everything is XXH3-64. A *block hash* names one block's tokens; a *sequence hash* names a
//! block and all before it. The adapter and the cache salt enter through the seed of the block
//! hashes, so two namespaces never share a chain.

use std::num::NonZeroU32;

use xxhash_rust::const_xxh3::const_custom_default_secret;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_secret, xxh3_64_with_seed};

/// The seed of plain block hashes and, always, of the chain.
const CHAIN_SEED: u64 = 1337;

/// Inputs above this many bytes are hashed with a secret that is derived from the seed, which costs
/// as much as hashing a block: it is derived once for all blocks of a prompt.
const SEEDED_BYTES: usize = 240;
const SECRET_BYTES: usize = 192;
const LONG_TURN: usize = 16;
const CHAIN_SECRET: [u8; SECRET_BYTES] = const_custom_default_secret(CHAIN_SEED);

/// Names the tokens of one block.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

/// Names one block and all blocks before it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceHash(pub u64);

/// An engine's own name for a block; opaque, and only comparable within one worker rank.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineHash(pub u64);

/// The seed of the block hashes of one namespace (adapter and cache salt).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashSeed(u64);

/// How a partition cuts tokens into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashLayout {
    /// Tokens in a block.
    pub block_size: NonZeroU32,
    /// Whether each block also covers the first token of the next (bigram models).
    pub eagle: bool,
}

/// The hashes of the complete blocks of a prompt, index by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptHashes {
    /// One per complete block.
    pub block_hashes: Vec<BlockHash>,
    /// The chain over `block_hashes`; of the same length.
    pub sequence_hashes: Vec<SequenceHash>,
}

impl HashSeed {
    /// An empty name or salt counts as absent.
    pub fn new(lora_name: Option<&str>, cache_salt: Option<&str>) -> Self {
        let lora = lora_name
            .filter(|name| !name.is_empty())
            .map_or(0, |name| xxh3_64(name.as_bytes()));
        let salt = cache_salt
            .filter(|salt| !salt.is_empty())
            .map_or(0, |salt| xxh3_64_with_seed(salt.as_bytes(), 1));
        Self(CHAIN_SEED.wrapping_add(lora).wrapping_add(salt))
    }

    /// The seed as a number.
    pub fn get(self) -> u64 {
        self.0
    }

    fn secret(self) -> [u8; SECRET_BYTES] {
        if self.0 == CHAIN_SEED {
            return CHAIN_SECRET;
        }
        const_custom_default_secret(self.0)
    }
}

impl Default for HashSeed {
    fn default() -> Self {
        Self(CHAIN_SEED)
    }
}

impl HashLayout {
    /// Tokens of one block, as a length.
    pub fn block_tokens(self) -> usize {
        usize::try_from(self.block_size.get()).unwrap_or(usize::MAX)
    }

    /// How many complete blocks `tokens` make.
    pub fn complete_blocks(self, tokens: usize) -> usize {
        if self.eagle {
            tokens.saturating_sub(1) / self.block_tokens()
        } else {
            tokens / self.block_tokens()
        }
    }
}

/// Hashes and chains the complete blocks of `tokens` in one pass; the tail is dropped.
///
/// `media[i]` are the media hashes of block `i`, in any order; the slice may be shorter than the
/// prompt, and an empty entry means none.
pub fn prompt_hashes(
    tokens: &[u32],
    layout: HashLayout,
    seed: HashSeed,
    media: &[Vec<u64>],
) -> PromptHashes {
    let blocks = layout.complete_blocks(tokens.len());
    let mut hashes = PromptHashes {
        block_hashes: Vec::with_capacity(blocks),
        sequence_hashes: Vec::with_capacity(blocks),
    };
    let mut parent = None;
    for_each_block(tokens, layout, seed, media, |block| {
        let sequence = chain(parent, block);
        parent = Some(sequence);
        hashes.block_hashes.push(block);
        hashes.sequence_hashes.push(sequence);
    });
    hashes
}

/// The sequence hashes alone, for callers that keep no block hashes.
pub fn sequence_hashes(
    tokens: &[u32],
    layout: HashLayout,
    seed: HashSeed,
    media: &[Vec<u64>],
) -> Vec<SequenceHash> {
    let mut hashes = Vec::with_capacity(layout.complete_blocks(tokens.len()));
    let mut parent = None;
    for_each_block(tokens, layout, seed, media, |block| {
        let sequence = chain(parent, block);
        parent = Some(sequence);
        hashes.push(sequence);
    });
    hashes
}

/// Chains block hashes that were computed elsewhere.
pub fn chain_all(block_hashes: &[BlockHash]) -> Vec<SequenceHash> {
    let mut parent = None;
    block_hashes
        .iter()
        .map(|block| {
            let sequence = chain(parent, *block);
            parent = Some(sequence);
            sequence
        })
        .collect()
}

/// The sequence hash of `block` behind `parent`; a first block's is its block hash.
pub fn chain(parent: Option<SequenceHash>, block: BlockHash) -> SequenceHash {
    let Some(SequenceHash(parent)) = parent else {
        return SequenceHash(block.0);
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&parent.to_le_bytes());
    bytes[8..].copy_from_slice(&block.0.to_le_bytes());
    SequenceHash(xxh3_64_with_seed(&bytes, CHAIN_SEED))
}

/// The hash of a media item's id: a digest of 64 hex digits counts by its first 16, any other
/// text is hashed; an empty id names nothing.
pub fn media_hash(id: &str) -> Option<u64> {
    if id.is_empty() {
        return None;
    }
    if id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return u64::from_str_radix(&id[..16], 16).ok();
    }
    Some(xxh3_64(id.as_bytes()))
}

/// Visits the block hashes of the complete blocks of `tokens`, for callers that keep them in a form
/// of their own; `media` as for [`prompt_hashes`].
pub fn for_each_block(
    tokens: &[u32],
    layout: HashLayout,
    seed: HashSeed,
    media: &[Vec<u64>],
    visit: impl FnMut(BlockHash),
) {
    let is_plain = !layout.eagle && media.is_empty();
    match layout.block_size.get() {
        16 if is_plain => for_each_of::<16>(tokens, seed, visit),
        32 if is_plain => for_each_of::<32>(tokens, seed, visit),
        64 if is_plain => for_each_of::<64>(tokens, seed, visit),
        128 if is_plain => for_each_of::<128>(tokens, seed, visit),
        _ => for_each_window(tokens, layout, seed, media, visit),
    }
}

/// Blocks of the usual sizes: their length is known here, so nothing is copied byte by byte.
fn for_each_of<const SIZE: usize>(
    tokens: &[u32],
    seed: HashSeed,
    mut visit: impl FnMut(BlockHash),
) {
    let (blocks, _) = tokens.as_chunks::<SIZE>();
    if SIZE * 4 > SEEDED_BYTES {
        let secret = seed.secret();
        let hash = |block: &[u32; SIZE]| {
            let bytes = block.map(u32::to_le_bytes);
            BlockHash(xxh3_64_with_secret(bytes.as_flattened(), &secret))
        };
        // One long block after the other, then their chain: in turns, the one would wait for the other.
        for turn in blocks.chunks(LONG_TURN) {
            let mut hashes = [BlockHash(0); LONG_TURN];
            for (hashed, block) in hashes.iter_mut().zip(turn) {
                *hashed = hash(block);
            }
            hashes[..turn.len()].iter().copied().for_each(&mut visit);
        }
        return;
    }
    for block in blocks {
        let bytes = block.map(u32::to_le_bytes);
        visit(BlockHash(xxh3_64_with_seed(bytes.as_flattened(), seed.0)));
    }
}

/// Blocks of any size, bigrams and media.
fn for_each_window(
    tokens: &[u32],
    layout: HashLayout,
    seed: HashSeed,
    media: &[Vec<u64>],
    mut visit: impl FnMut(BlockHash),
) {
    let stride = layout.block_tokens();
    let window = stride.saturating_add(usize::from(layout.eagle));
    let mut bytes = Vec::with_capacity(window.min(tokens.len()).saturating_mul(4));
    for index in 0..layout.complete_blocks(tokens.len()) {
        let start = index * stride;
        let block = &tokens[start..start + window];
        bytes.resize(block.len() * 4, 0);
        for (four, token) in bytes.chunks_exact_mut(4).zip(block) {
            four.copy_from_slice(&token.to_le_bytes());
        }
        if let Some(items) = media.get(index) {
            append_media(&mut bytes, items);
        }
        visit(BlockHash(xxh3_64_with_seed(&bytes, seed.0)));
    }
}

fn append_media(bytes: &mut Vec<u8>, items: &[u64]) {
    let mut sorted = items.to_vec();
    sorted.sort_unstable();
    bytes.extend(sorted.iter().flat_map(|item| item.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_4: u32 = 4;

    fn layout(block_size: u32, eagle: bool) -> HashLayout {
        HashLayout {
            block_size: NonZeroU32::new(block_size).unwrap(),
            eagle,
        }
    }

    fn check(seed: HashSeed, expected_seed: u64, blocks: [u64; 3], sequences: [u64; 3]) {
        let tokens: Vec<u32> = (1..=13).collect();
        let hashes = prompt_hashes(&tokens, layout(BLOCK_4, false), seed, &[]);
        assert_eq!(seed.get(), expected_seed);
        assert_eq!(hashes.block_hashes, blocks.map(BlockHash));
        assert_eq!(hashes.sequence_hashes, sequences.map(SequenceHash));
        assert_eq!(chain_all(&hashes.block_hashes), hashes.sequence_hashes);
        assert_eq!(
            sequence_hashes(&tokens, layout(BLOCK_4, false), seed, &[]),
            hashes.sequence_hashes
        );
    }

    #[test]
    fn plain_prompts_match_the_vectors() {
        check(
            HashSeed::new(None, None),
            1337,
            [
                14_643_705_804_678_351_452,
                16_777_012_769_546_811_212,
                483_935_686_894_639_516,
            ],
            [
                14_643_705_804_678_351_452,
                4_945_711_292_740_353_085,
                12_583_592_247_330_656_132,
            ],
        );
    }

    #[test]
    fn an_adapter_enters_through_the_seed() {
        check(
            HashSeed::new(Some("my-adapter"), None),
            2_360_313_164_392_603_308,
            [
                15_633_847_640_104_431_966,
                728_185_010_911_637_095,
                3_844_993_433_954_264_052,
            ],
            [
                15_633_847_640_104_431_966,
                14_618_286_025_626_813_942,
                18_132_763_402_479_033_823,
            ],
        );
    }

    #[test]
    fn a_salt_enters_through_the_seed() {
        check(
            HashSeed::new(None, Some("tenant-aaa")),
            9_795_566_528_167_360_024,
            [
                1_833_494_726_187_984_249,
                2_784_573_379_562_370_406,
                3_865_630_407_322_265_866,
            ],
            [
                1_833_494_726_187_984_249,
                215_669_466_014_408_613,
                13_117_949_009_322_518_153,
            ],
        );
    }

    #[test]
    fn adapter_and_salt_add_up() {
        check(
            HashSeed::new(Some("my-adapter"), Some("tenant-aaa")),
            12_155_879_692_559_961_995,
            [
                13_681_163_142_307_287_594,
                10_432_810_300_430_557_341,
                14_085_026_847_406_775_611,
            ],
            [
                13_681_163_142_307_287_594,
                3_075_938_708_744_033_261,
                7_126_396_930_050_774_276,
            ],
        );
    }

    #[test]
    fn empty_names_count_as_absent() {
        assert_eq!(HashSeed::new(Some(""), Some("")), HashSeed::default());
    }

    #[test]
    fn the_hash_function_is_xxh3_with_a_seed() {
        assert_eq!(
            xxh3_64_with_seed(b"test data", CHAIN_SEED),
            13_226_331_709_069_118_873
        );
    }

    #[test]
    fn media_hashes_follow_the_tokens() {
        let media = vec![vec![0x0123_4567_89ab_cdef]];
        let hashes = prompt_hashes(&[7, 8], layout(2, false), HashSeed::default(), &media);
        assert_eq!(hashes.block_hashes, [BlockHash(5_232_646_697_599_882_444)]);
    }

    #[test]
    fn the_order_of_media_in_a_block_does_not_matter() {
        let of = |items: Vec<u64>| {
            prompt_hashes(&[7, 8], layout(2, false), HashSeed::default(), &[items])
        };
        assert_eq!(of(vec![1, 2]), of(vec![2, 1]));
        assert_ne!(of(vec![1, 2]), of(vec![1]));
        assert_eq!(
            of(vec![]),
            prompt_hashes(&[7, 8], layout(2, false), HashSeed::default(), &[])
        );
    }

    #[test]
    fn eagle_windows_overlap_by_one_token() {
        let tokens: Vec<u32> = (1..=13).collect();
        let hashes = prompt_hashes(&tokens, layout(3, true), HashSeed::default(), &[]);
        assert_eq!(
            hashes.block_hashes,
            [
                14_643_705_804_678_351_452,
                12_124_091_508_212_882_195,
                1_572_364_245_376_095_490,
                8_906_183_847_324_352_865,
            ]
            .map(BlockHash)
        );
    }

    #[test]
    fn the_usual_block_sizes_are_hashed_like_any_other() {
        let tokens: Vec<u32> = (0..1_000_u32)
            .map(|at| at.wrapping_mul(2_654_435_761))
            .collect();
        for size in [16, 32, 64, 128] {
            for seed in [HashSeed::default(), HashSeed::new(None, Some("tenant"))] {
                let mut general = Vec::new();
                let layout = layout(size, false);
                for_each_window(&tokens, layout, seed, &[], |block| general.push(block));
                let hashes = prompt_hashes(&tokens, layout, seed, &[]);
                assert_eq!(hashes.block_hashes, general, "{size} {seed:?}");
                assert!(!general.is_empty());
            }
        }
    }

    #[test]
    fn incomplete_blocks_are_dropped() {
        for (tokens, eagle, blocks) in [
            (0, false, 0),
            (3, false, 0),
            (4, false, 1),
            (7, false, 1),
            (0, true, 0),
            (4, true, 0),
            (5, true, 1),
            (9, true, 2),
        ] {
            let tokens = vec![1; tokens];
            let hashes = prompt_hashes(&tokens, layout(4, eagle), HashSeed::default(), &[]);
            assert_eq!(hashes.sequence_hashes.len(), blocks, "{tokens:?} {eagle}");
        }
    }

    #[test]
    fn media_ids_become_hashes() {
        let digest = "0123456789abcdef".repeat(4);
        assert_eq!(media_hash(&digest), Some(0x0123_4567_89ab_cdef));
        assert_eq!(media_hash("cat.png"), Some(xxh3_64(b"cat.png")));
        assert_eq!(media_hash(""), None);
        let not_ascii = "é".repeat(32);
        assert_eq!(media_hash(&not_ascii), Some(xxh3_64(not_ascii.as_bytes())));
    }
}
