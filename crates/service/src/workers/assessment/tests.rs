//! Which workers may serve, and the words for those that may not; it starts nothing.

use super::*;

fn rules() -> Rules {
    Rules {
        default_block_size: NonZeroU32::new(16).unwrap(),
        require_ip_endpoints: true,
        use_kv_events: true,
        queueing: false,
    }
}

fn worker() -> WorkerRegistration {
    WorkerRegistration {
        endpoint: Some("http://10.0.0.7:8000".to_owned()),
        ..WorkerRegistration::new(1)
    }
}

fn ranked(first_rank: u32, rank_count: u32) -> WorkerRegistration {
    WorkerRegistration {
        data_parallel_start_rank: Some(first_rank),
        data_parallel_size: Some(rank_count),
        ..worker()
    }
}

fn layout(block_size: u32, eagle: bool) -> Layout {
    Layout {
        block_size: NonZeroU32::new(block_size).unwrap(),
        eagle,
    }
}

fn reasons_by(worker: &WorkerRegistration, rules: &Rules, pinned: Option<Layout>) -> Vec<String> {
    match assess(worker, rules, pinned) {
        Ok(_) => Vec::new(),
        Err(reasons) => reasons.iter().map(ToString::to_string).collect(),
    }
}

fn reasons(worker: &WorkerRegistration) -> Vec<String> {
    reasons_by(worker, &rules(), None)
}

fn plan(worker: &WorkerRegistration) -> Plan {
    assess(worker, &rules(), None).unwrap()
}

/// Rank, publisher and replay of each source.
fn sources(worker: &WorkerRegistration) -> Vec<(u32, String, Option<String>)> {
    let sources = plan(worker).sources.into_iter();
    sources
        .map(|(dp_rank, source)| (dp_rank, source.publisher, source.replay))
        .collect()
}

const NONE: [&str; 0] = [];

#[test]
fn a_worker_needs_nothing_but_an_endpoint() {
    let plan = plan(&worker());
    assert_eq!(plan.endpoint.url, "http://10.0.0.7:8000");
    assert_eq!(plan.endpoint.authority, "10.0.0.7:8000");
    assert_eq!(plan.layout, layout(16, false));
    assert!(
        plan.sources.is_empty(),
        "no events are known: routed by load"
    );
    assert_eq!(
        reasons(&WorkerRegistration::new(1)),
        ["endpoint is required"]
    );
}

#[test]
fn an_endpoint_for_a_data_plane_is_an_address_with_a_port() {
    let check = |endpoint: &str, authority: Option<&str>| {
        let worker = WorkerRegistration {
            endpoint: Some(endpoint.to_owned()),
            ..worker()
        };
        let found = assess(&worker, &rules(), None)
            .map(|plan| plan.endpoint.authority)
            .ok();
        assert_eq!(found.as_deref(), authority, "{endpoint}");
    };
    check("http://10.0.0.7:8000", Some("10.0.0.7:8000"));
    check("http://10.0.0.7:8000/", Some("10.0.0.7:8000"));
    check(" http://[2001:DB8::1]:8000 ", Some("[2001:db8::1]:8000"));
    for bad in [
        "",
        "http://worker:8000",
        "http://10.0.0.7",
        "http://10.0.0.7:0",
        "http://10.0.0.7:99999",
        "http://2001:db8::1:8000",
        "https://10.0.0.7:8000",
        "10.0.0.7:8000",
        "http://10.0.0.7:8000/v1",
        "http://user@10.0.0.7:8000",
    ] {
        check(bad, None);
    }
    let named = WorkerRegistration {
        endpoint: Some("http://worker:8000".to_owned()),
        ..worker()
    };
    assert_eq!(
        reasons(&named),
        ["endpoint must be http://ip:port (IPv6 in brackets), found http://worker:8000"]
    );
}

#[test]
fn an_endpoint_for_other_callers_may_name_a_host() {
    let rules = Rules {
        require_ip_endpoints: false,
        ..rules()
    };
    let check = |endpoint: &str, good: bool| {
        let worker = WorkerRegistration {
            endpoint: Some(endpoint.to_owned()),
            ..worker()
        };
        assert_eq!(assess(&worker, &rules, None).is_ok(), good, "{endpoint}");
    };
    check("http://worker:8000", true);
    check("https://worker.ns.svc:8000", true);
    check("http://[::1]:8000", true);
    check("http://::1:8000", false);
    check("http://worker", false);
    check("worker:8000", false);
    check("http://:8000", false);
}

#[test]
fn every_reason_is_told_at_once() {
    let worker = WorkerRegistration {
        block_size: Some(0),
        data_parallel_size: Some(0),
        ..WorkerRegistration::new(1)
    };
    let rules = Rules {
        queueing: true,
        ..rules()
    };
    assert_eq!(
        reasons_by(&worker, &rules, None),
        [
            "endpoint is required",
            "block_size must be greater than 0",
            "max_num_batched_tokens is required while queueing is enabled",
            "data_parallel_size must be greater than 0",
        ]
    );
}

#[test]
fn a_partitions_layout_is_pinned() {
    let sized = |block_size| WorkerRegistration {
        block_size,
        ..worker()
    };
    let pinned = Some(layout(32, true));
    assert_eq!(reasons_by(&sized(None), &rules(), pinned), NONE);
    assert_eq!(reasons_by(&sized(Some(32)), &rules(), pinned), NONE);
    assert_eq!(
        reasons_by(&sized(Some(16)), &rules(), pinned),
        ["reconciliation failed: the partition has block_size 32, the worker 16"]
    );
    let eagle = |is_eagle| WorkerRegistration {
        is_eagle,
        ..worker()
    };
    assert_eq!(reasons_by(&eagle(Some(true)), &rules(), pinned), NONE);
    assert_eq!(
        reasons_by(&eagle(Some(false)), &rules(), pinned),
        ["reconciliation failed: the partition has is_eagle true, the worker false"]
    );
}

#[test]
fn one_rank_takes_the_endpoints_as_they_are() {
    let worker = WorkerRegistration {
        kv_events_endpoint: Some("tcp://10.0.0.7:5557".to_owned()),
        replay_endpoint: Some("tcp://10.0.0.7:5560".to_owned()),
        ..ranked(3, 1)
    };
    let replay = Some("tcp://10.0.0.7:5560".to_owned());
    assert_eq!(
        sources(&worker),
        [(3, "tcp://10.0.0.7:5557".to_owned(), replay)]
    );
}

#[test]
fn several_ranks_count_ports_up_from_a_base_and_maps_win() {
    let mut worker = WorkerRegistration {
        kv_events_endpoint: Some("tcp://[::1]:5557".to_owned()),
        replay_endpoint: Some("tcp://10.0.0.7:5560".to_owned()),
        ..ranked(0, 2)
    };
    worker
        .replay_endpoints
        .insert(1, "tcp://10.0.0.8:7000".to_owned());
    let text = |text: &str| text.to_owned();
    assert_eq!(
        sources(&worker),
        [
            (
                0,
                text("tcp://[::1]:5557"),
                Some(text("tcp://10.0.0.7:5560"))
            ),
            (
                1,
                text("tcp://[::1]:5558"),
                Some(text("tcp://10.0.0.8:7000"))
            ),
        ]
    );
}

#[test]
fn a_rank_without_events_beside_one_with_them_is_a_mistake() {
    let mut worker = ranked(0, 2);
    worker
        .kv_events_endpoints
        .insert(0, "tcp://10.0.0.7:5557".to_owned());
    assert_eq!(
        reasons(&worker),
        ["kv_events endpoint is required for dp_rank 1"]
    );
    let without_events = Rules {
        use_kv_events: false,
        ..rules()
    };
    assert_eq!(reasons_by(&worker, &without_events, None), NONE);
}

#[test]
fn sockets_that_cannot_be_dialled_are_named() {
    let with = |publisher: &str, rank_count| WorkerRegistration {
        kv_events_endpoint: Some(publisher.to_owned()),
        ..ranked(0, rank_count)
    };
    let bad = |found: &str| {
        vec![format!(
            "kv_events_endpoint must be tcp://host:port or ipc://path, found {found}"
        )]
    };
    assert_eq!(reasons(&with("tcp://engine:5557", 1)), NONE);
    assert_eq!(reasons(&with("ipc:///run/kv", 1)), NONE);
    for found in [
        "tcp://*:5557",
        "tcp://engine",
        "tcp://::1:5557",
        "http://engine:1",
        "engine:1",
    ] {
        assert_eq!(reasons(&with(found, 1)), bad(found));
    }
    assert_eq!(reasons(&with("ipc:///run/kv", 2)), bad("ipc:///run/kv"));
    assert_eq!(
        reasons(&with("tcp://engine:65535", 3)),
        ["kv_events_endpoint tcp://engine:65535 leaves no port for dp_rank 1"]
    );
}

#[test]
fn a_map_may_not_name_a_rank_that_is_not_there() {
    let mut worker = ranked(2, 1);
    worker
        .kv_events_endpoints
        .insert(2, "tcp://10.0.0.7:5557".to_owned());
    worker
        .replay_endpoints
        .insert(0, "tcp://10.0.0.7:5560".to_owned());
    assert_eq!(
        reasons(&worker),
        ["replay_endpoints names dp_rank 0, which the worker does not have"]
    );
}

#[test]
fn ranks_end_where_their_numbers_do() {
    assert_eq!(reasons(&ranked(u32::MAX - 1, 1)), NONE);
    assert_eq!(
        reasons(&ranked(u32::MAX, 2)),
        ["data_parallel_start_rank 4294967295 leaves no room for 2 ranks"]
    );
}
