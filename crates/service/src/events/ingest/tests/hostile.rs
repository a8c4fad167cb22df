//! Damaged batches of real publishers, one after another into one ingest.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::super::sample;
use super::*;

#[test]
fn damaged_batches_leave_an_ingest_that_works() {
    let seed = 0x5eed_0002;
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    let corpus = sample::recorded_payloads();
    let mut rig = Rig::new();
    for _ in 0..30_000 {
        let replayed = random.random_bool(0.2);
        let payload = Bytes::from(sample::damaged(&mut random, &corpus));
        rig.ingest.is_foreign(&payload);
        let sequence = rig.next;
        rig.ingest.apply(&Frame { sequence, payload }, replayed);
        rig.next += 1;
        match random.random_range(0..400) {
            0 => rig.ingest.doubt(),
            1 => drop(rig.ingest.drop_doubted()),
            2 => rig.ingest.clear(),
            _ => {}
        }
    }
    let stored = rig.metrics.applied(EventKind::Stored);
    assert!(stored > 1_000, "only {stored} stores got through");
    assert!(rig.metrics.bad_batches.get() > 1_000);
    rig.apply(batch_of_rank(0, vec![cleared()]));
    rig.apply(batch_of_rank(1, vec![cleared()]));
    let index = rig.partition.stats().index;
    assert_eq!(
        (index.entries, index.strands, index.waiting_events),
        (0, 0, 0)
    );
    assert_eq!(rig.ingest.remembered(), 0);
    rig.apply_events(vec![plain(&[101], None, &tokens(1..5))]);
    assert_eq!(rig.overlap(&tokens(1..5)), 1);
}
