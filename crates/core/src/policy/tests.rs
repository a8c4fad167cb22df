//! That nothing a policy does harms its host.

use std::sync::atomic::AtomicUsize;

use pointsman_plugin::{WorkerInputView, WorkerPicker, WorkerWithDpRank};

use super::*;

/// Picks the first row, after doing something unheard of on its first selection.
struct Picker {
    misdeed: Option<fn()>,
    on_drop: Option<fn()>,
}

impl WorkerPicker for Picker {
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        _: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        if let Some(misdeed) = self.misdeed {
            misdeed();
        }
        Ok(0)
    }
}

impl Drop for Picker {
    fn drop(&mut self) {
        if let Some(on_drop) = self.on_drop {
            on_drop();
        }
    }
}

/// A host whose factory calls `policy` with the number of policies asked for before.
fn host(policy: impl Fn(usize) -> Picker + Send + Sync + 'static) -> PolicyHost {
    let built = AtomicUsize::new(0);
    PolicyHost::new(Blueprint {
        factory: Arc::new(move |config: &KvRouterConfig, _, _| {
            let picker = policy(built.fetch_add(1, Ordering::Relaxed));
            WorkerSelectionPolicy::new(config.clone(), "test", Vec::new(), Box::new(picker))
        }),
        config: KvRouterConfig::default(),
        worker_type: WorkerType::Aggregated,
        partition: PartitionId::new("model", "default"),
    })
}

fn select(host: &mut PolicyHost) -> Result<PolicySelection, SelectError> {
    host.wants()?;
    host.candidates.clear();
    host.candidates
        .push(WorkerCandidate::new(WorkerWithDpRank::new(1, 0)));
    host.select(&RequestSignals::default(), None)
}

const HONEST: Picker = Picker {
    misdeed: None,
    on_drop: None,
};

#[test]
fn a_policy_that_panics_is_built_again() {
    let mut host = host(|built| match built {
        0 => Picker {
            misdeed: Some(|| panic!("in pick")),
            ..HONEST
        },
        _ => HONEST,
    });
    assert!(matches!(
        select(&mut host),
        Err(SelectError::PolicyPanicked)
    ));
    assert_eq!(select(&mut host).unwrap().worker.worker_id, 1);
    assert_eq!(host.panics().load(Ordering::Relaxed), 1);
}

#[test]
fn a_policy_may_panic_again_while_it_is_dropped() {
    let mut host = host(|built| match built {
        0 => Picker {
            misdeed: Some(|| panic!("in pick")),
            on_drop: Some(|| panic!("in drop")),
        },
        _ => HONEST,
    });
    assert!(matches!(
        select(&mut host),
        Err(SelectError::PolicyPanicked)
    ));
    assert!(select(&mut host).is_ok());
    assert_eq!(host.panics().load(Ordering::Relaxed), 2);
}

#[test]
fn a_panic_may_carry_something_that_panics() {
    struct Spring;
    impl Drop for Spring {
        fn drop(&mut self) {
            panic!("in the payload");
        }
    }
    let mut host = host(|built| match built {
        0 => Picker {
            misdeed: Some(|| std::panic::panic_any(Spring)),
            ..HONEST
        },
        _ => HONEST,
    });
    assert!(matches!(
        select(&mut host),
        Err(SelectError::PolicyPanicked)
    ));
    assert!(select(&mut host).is_ok());
}

#[test]
fn a_factory_that_panics_is_asked_again_by_the_next_selection() {
    let mut host = host(|built| {
        assert!(built >= 2, "not yet");
        HONEST
    });
    assert!(matches!(
        select(&mut host),
        Err(SelectError::PolicyPanicked)
    ));
    assert!(select(&mut host).is_ok());
    assert_eq!(host.panics().load(Ordering::Relaxed), 2);
}
