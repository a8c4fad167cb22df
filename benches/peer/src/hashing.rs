//! Times the hashing and chaining of a prompt's blocks, the two values of each block compared first.

use std::hint::black_box;

use dynamo_kv_router::protocols::{
    BlockHashOptions, compute_block_hash_for_seq, compute_seq_hash_for_block,
};
use pointsman_core::hash::{HashLayout, HashSeed, prompt_hashes};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::report::{cpu, quantile, verdict};

const REPEATS: usize = 21;
/// Tokens hashed in one turn of a side.
const TURN_TOKENS: usize = 8_000_000;

pub(crate) fn run() {
    println!("block and sequence hashes, billion tokens per second of CPU: ours / peer");
    for (block_size, limit) in [(16, 1.0 / 1.4), (64, 1.0 / 1.2)] {
        for tokens in [8_192, 32_768, 131_072] {
            row(block_size, tokens, limit);
        }
    }
}

fn row(block_size: u32, tokens: usize, limit: f64) {
    let mut random = SmallRng::seed_from_u64(3);
    let ids: Vec<u32> = (0..tokens)
        .map(|_| random.random_range(0..200_000))
        .collect();
    let layout = HashLayout {
        block_size: block_size.try_into().expect("a size"),
        eagle: false,
    };
    let ours = || prompt_hashes(&ids, layout, HashSeed::default(), &[]);
    let peers = || {
        let blocks = compute_block_hash_for_seq(&ids, block_size, BlockHashOptions::default());
        let sequences = compute_seq_hash_for_block(&blocks);
        (blocks, sequences)
    };
    let (hashes, (blocks, sequences)) = (ours(), peers());
    assert!(
        hashes
            .block_hashes
            .iter()
            .map(|hash| hash.0)
            .eq(blocks.iter().map(|hash| hash.0))
    );
    assert!(
        hashes
            .sequence_hashes
            .iter()
            .map(|hash| hash.0)
            .eq(sequences)
    );
    let turns = TURN_TOKENS / tokens;
    let (mut our, mut their, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        let start = cpu();
        for _ in 0..turns {
            black_box(ours());
        }
        let between = cpu();
        for _ in 0..turns {
            black_box(peers());
        }
        let done = cpu();
        our.push(between - start);
        their.push(done - between);
        ratios.push(our[our.len() - 1] / their[their.len() - 1]);
    }
    let rate = |figures: &mut Vec<f64>| (turns * tokens) as f64 / quantile(figures, 0.5) / 1e9;
    println!(
        "block {block_size:>3}, {tokens:>6} tokens: {:>5.2} / {:>5.2}  time {}",
        rate(&mut our),
        rate(&mut their),
        verdict(quantile(&mut ratios, 0.5), limit)
    );
}
