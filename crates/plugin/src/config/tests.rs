//! Which policy a role uses, and which settings are refused.

use super::*;
use crate::policy_yaml::RouterPolicyConfig;

const FILE: &str = "worker_selection: {aggregated: a, prefill: p, decode: d, encode: e,
    instances: [{name: a, type: t}, {name: p, type: t}, {name: d, type: t}, {name: e, type: t}]}";

fn config(every_role: Option<&str>, prefill: Option<&str>, decode: Option<&str>) -> KvRouterConfig {
    KvRouterConfig {
        worker_selection: RouterPolicyConfig::from_yaml(FILE)
            .unwrap()
            .worker_selection,
        worker_selection_override: every_role.map(str::to_owned),
        prefill_override: prefill.map(str::to_owned),
        decode_override: decode.map(str::to_owned),
        ..KvRouterConfig::default()
    }
}

/// What aggregated, prefill, decode and encode use; `-` is the built-in policy.
fn selections(config: &KvRouterConfig) -> [&str; 4] {
    WorkerType::EVERY.map(|role| config.selection_for(role).map_or("-", |(name, _)| name))
}

#[test]
fn a_role_uses_its_override_then_that_of_every_role_then_the_file() {
    let table = [
        ((None, None, None), ["a", "p", "d", "e"]),
        ((Some("x"), None, None), ["x", "x", "x", "x"]),
        ((None, Some("y"), None), ["a", "y", "d", "e"]),
        ((None, None, Some("z")), ["a", "p", "z", "e"]),
        ((Some("x"), Some("y"), Some("z")), ["x", "y", "z", "x"]),
        ((Some("default"), None, None), ["-", "-", "-", "-"]),
        ((Some("default"), Some("y"), None), ["-", "y", "-", "-"]),
        ((Some("x"), Some("default"), None), ["x", "-", "x", "x"]),
        ((Some(""), Some("  "), None), ["a", "p", "d", "e"]),
        (
            (Some("  x "), None, Some(" default ")),
            ["x", "x", "-", "x"],
        ),
    ];
    for ((every_role, prefill, decode), expected) in table {
        let config = config(every_role, prefill, decode);
        assert_eq!(
            selections(&config),
            expected,
            "{every_role:?} {prefill:?} {decode:?}"
        );
    }
}

#[test]
fn nothing_said_means_built_in_everywhere() {
    assert_eq!(selections(&KvRouterConfig::default()), ["-"; 4]);
}

#[test]
fn one_roles_selection_is_not_lent_to_another() {
    let file = RouterPolicyConfig::from_yaml(
        "worker_selection: {aggregated: a, instances: [{name: a, type: t}]}",
    );
    let config = KvRouterConfig {
        worker_selection: file.unwrap().worker_selection,
        ..KvRouterConfig::default()
    };
    assert_eq!(selections(&config), ["a", "-", "-", "-"]);
}

#[test]
fn a_source_displays_as_the_name_of_its_setting() {
    let config = config(Some("x"), Some("y"), None);
    let source = |role| config.selection_for(role).unwrap().1.to_string();
    assert_eq!(source(WorkerType::Prefill), "DYN_ROUTER_PREFILL_POLICY");
    assert_eq!(
        source(WorkerType::Decode),
        "DYN_ROUTER_WORKER_SELECTION_POLICY"
    );
    assert_eq!(
        SelectionSource::File(WorkerType::Encode).to_string(),
        "worker_selection.encode"
    );
}

#[test]
fn the_defaults_are_valid() {
    assert_eq!(KvRouterConfig::default().validate(), Ok(()));
}

/// Applies `change` to the defaults and expects exactly the mistakes in `fields`.
fn check(change: impl Fn(&mut KvRouterConfig), fields: &[&str]) {
    let mut config = KvRouterConfig::default();
    change(&mut config);
    let mistakes = config.validate().err().unwrap_or_default();
    let named: Vec<&str> = mistakes.iter().map(|mistake| mistake.field).collect();
    assert_eq!(named, fields, "{mistakes:?}");
}

#[test]
fn weights_must_be_finite_and_not_negative() {
    for bad in [
        -1.0,
        -f64::MIN_POSITIVE,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ] {
        check(
            |config| config.overlap_score_credit = bad,
            &["overlap_score_credit"],
        );
        check(
            |config| config.overlap_score_credit_decay = bad,
            &["overlap_score_credit_decay"],
        );
        check(
            |config| config.prefill_load_scale = bad,
            &["prefill_load_scale"],
        );
        check(
            |config| config.decode_active_request_weight = bad,
            &["decode_active_request_weight"],
        );
        check(
            |config| config.host_cache_hit_weight = bad,
            &["host_cache_hit_weight"],
        );
        check(
            |config| config.disk_cache_hit_weight = bad,
            &["disk_cache_hit_weight"],
        );
        check(
            |config| config.router_temperature = bad,
            &["router_temperature"],
        );
        check(
            |config| config.shared_cache_multiplier = Some(bad),
            &["shared_cache_multiplier"],
        );
        check(
            |config| config.router_queue_threshold = Some(bad),
            &["router_queue_threshold"],
        );
        check(|config| config.router_ttl_secs = bad, &["router_ttl_secs"]);
    }
    check(|config| config.overlap_score_credit = -0.0, &[]);
}

#[test]
fn the_shared_multiplier_is_a_fraction() {
    check(|config| config.shared_cache_multiplier = Some(1.0), &[]);
    check(
        |config| config.shared_cache_multiplier = Some(1.000_1),
        &["shared_cache_multiplier"],
    );
}

#[test]
fn settings_that_need_another_are_refused_without_it() {
    let output_without_active = |config: &mut KvRouterConfig| {
        config.router_track_output_blocks = true;
        config.router_track_active_blocks = false;
    };
    check(output_without_active, &["router_track_output_blocks"]);
    let predicted_without_events = |config: &mut KvRouterConfig| {
        config.router_predicted_ttl_secs = Some(1.0);
        config.use_kv_events = false;
    };
    check(predicted_without_events, &["router_predicted_ttl_secs"]);
    check(
        |config| config.router_event_threads = 0,
        &["router_event_threads"],
    );
}

#[test]
fn every_mistake_is_reported_at_once_with_its_value() {
    let config = KvRouterConfig {
        prefill_load_scale: -1.0,
        router_temperature: f64::NAN,
        router_event_threads: 0,
        ..KvRouterConfig::default()
    };
    let mistakes: Vec<String> = config
        .validate()
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        mistakes,
        [
            "prefill_load_scale is -1.0; expected a finite number of at least 0",
            "router_temperature is NaN; expected a finite number of at least 0",
            "router_event_threads is 0; expected at least 1",
        ]
    );
}

#[test]
fn a_queue_policy_is_read_by_name() {
    assert_eq!(" WSPT ".parse(), Ok(QueuePolicy::Wspt));
    let error = "fcsf".parse::<QueuePolicy>().unwrap_err();
    assert_eq!(
        error,
        "unknown queue policy \"fcsf\"; did you mean fcfs? known policies: fcfs, lcfs, wspt"
    );
}
