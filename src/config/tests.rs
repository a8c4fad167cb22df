//! What the settings accept, refuse and mean.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::scratch::Scratch;
use super::table::{self, Kind, Setting, Status};
use super::value;
use super::{Environment, SettingError, Settings};
use crate::serve::Security;

fn read(variables: &[(&str, &str)]) -> Result<Settings, Vec<SettingError>> {
    let variables: HashMap<String, String> = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let (settings, mistakes) = Settings::examine(&Environment {
        read: &|name| variables.get(name).cloned(),
        names: variables.keys().cloned().collect(),
    });
    if mistakes.is_empty() {
        Ok(settings)
    } else {
        Err(mistakes)
    }
}

fn read_file(yaml: &str, variables: &[(&str, &str)]) -> Result<Settings, Vec<SettingError>> {
    let scratch = Scratch::new();
    let path = scratch.file("settings.yaml", yaml);
    let mut variables = variables.to_vec();
    variables.push(("POINTSMAN_CONFIG", path.to_str().unwrap()));
    read(&variables)
}

fn mistakes(result: Result<Settings, Vec<SettingError>>) -> Vec<String> {
    result
        .expect_err("these settings hold a mistake")
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn nothing_set_is_the_published_default() {
    let settings = read(&[]).unwrap();
    assert_eq!(settings.serve.ext_proc, SocketAddr::from(([0; 4], 9002)));
    assert_eq!(settings.serve.health, SocketAddr::from(([0; 4], 9003)));
    assert_eq!(settings.admin, Some(SocketAddr::from(([0; 4], 9090))));
    assert!(settings.serve.security == Security::SelfSigned && !settings.picker.debug_headers);
    assert_eq!(settings.serve.limits.exchanges, 1024);
    assert_eq!(settings.serve.limits.body_bytes, 32 << 20);
    assert_eq!(settings.serve.limits.body_idle, Duration::from_mins(1));
    assert_eq!(
        settings.serve.limits.response_silence,
        Duration::from_mins(30)
    );
    assert_eq!(settings.serve.propagation, Duration::from_secs(5));
    assert_eq!(settings.tokenizer.tokenize.deadline, Duration::from_secs(5));
    assert_eq!(settings.block_size, 16);
    assert_eq!(settings.model_name, None);
    assert!(settings.router.router_track_output_blocks);
    assert!(settings.ignored.is_empty());
    assert!((settings.router.host_cache_hit_weight - 0.75).abs() < f64::EPSILON);
}

#[test]
fn every_default_is_a_value_of_its_kind_and_every_name_is_unique() {
    let mut names = Vec::new();
    for setting in table::settings() {
        if !setting.default.is_empty() {
            assert!(
                value::parse(setting.kind, setting.default).is_ok(),
                "{setting:?}"
            );
        }
        names.push(setting.variable);
        names.extend(setting.aliases);
        names.extend(setting.key);
    }
    let total = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), total);
}

/// A valid text that is not the default.
fn other_value(setting: &Setting, scratch: &Scratch) -> String {
    match setting.kind {
        Kind::Bool if setting.default == "true" => "false".to_owned(),
        Kind::Bool => "true".to_owned(),
        Kind::Port => "7".to_owned(),
        Kind::Host => "127.0.0.1".to_owned(),
        Kind::Count { min, .. } | Kind::Seconds { min, .. } | Kind::Millis { min, .. } => {
            (min + 77).to_string()
        }
        Kind::Bytes { .. } => "77".to_owned(),
        Kind::Weight | Kind::Credit => "0.125".to_owned(),
        Kind::Url => "http://127.0.0.1:7/query".to_owned(),
        Kind::Choice(words) => {
            (*words.iter().find(|word| **word != setting.default).unwrap()).to_owned()
        }
        Kind::Text => "other".to_owned(),
        Kind::Path => scratch
            .file(setting.variable, "")
            .to_str()
            .unwrap()
            .to_owned(),
        Kind::LogFilter => "debug".to_owned(),
    }
}

#[test]
fn every_setting_does_what_its_status_says_from_variable_and_from_file() {
    let scratch = Scratch::new();
    let default = format!("{:?}", read(&[]).unwrap());
    for setting in table::settings() {
        let value = other_value(setting, &scratch);
        let mut results = vec![(
            setting.variable.to_owned(),
            read(&[(setting.variable, &value)]),
        )];
        if let Some(key) = setting.key {
            // A dotted key is as good as a nested one.
            results.push((key.to_owned(), read_file(&format!("{key}: {value}"), &[])));
        }
        for (name, result) in results {
            match (setting.status, result) {
                // Each has tests of its own.
                _ if [
                    "POINTSMAN_CONFIG",
                    "DYN_EPP_MODE",
                    "POINTSMAN_REPLICA_SYNC_PEERS",
                ]
                .contains(&setting.variable) => {}
                (Status::Used, Ok(settings)) => {
                    assert_ne!(format!("{settings:?}"), default, "{name}");
                }
                (Status::Ignored, Ok(settings)) => assert_eq!(settings.ignored, [name]),
                (Status::NotYet, Err(found)) => {
                    assert!(
                        found[0].to_string().contains("not supported yet"),
                        "{name}: {found:?}"
                    );
                }
                (Status::OnlyDefault(why), Err(found)) => {
                    assert!(found[0].to_string().contains(why), "{name}: {found:?}");
                }
                (Status::Replaced(other), Err(found)) => {
                    assert!(found[0].to_string().contains(other), "{name}: {found:?}");
                }
                (status, result) => panic!("{name} is {status:?} and gave {result:?}"),
            }
        }
    }
}

#[test]
fn what_is_not_supported_yet_may_be_set_to_its_default() {
    for setting in table::settings().filter(|setting| setting.status == Status::NotYet) {
        assert!(
            read(&[(setting.variable, setting.default)]).is_ok(),
            "{setting:?}"
        );
    }
}

#[test]
fn a_wrong_value_names_its_variable_the_value_and_what_was_expected() {
    let check = |variable: &str, value: &str, expected: &str| {
        let found = mistakes(read(&[(variable, value)]));
        assert_eq!(found.len(), 1, "{found:?}");
        for part in [variable, value, expected] {
            assert!(found[0].contains(part), "{part} is not in {found:?}");
        }
    };
    for port in [
        "POINTSMAN_EXT_PROC_PORT",
        "POINTSMAN_HEALTH_PORT",
        "DYN_EPP_METRICS_PORT",
    ] {
        for wrong in ["90o2", "-1", "70000", "9002.0"] {
            check(port, wrong, "a port from 0 to 65535");
        }
    }
    check(
        "POINTSMAN_HEALTH_PORT",
        "tcp://10.0.0.1:9003",
        "enableServiceLinks",
    );
    check("DYN_SECURE_SERVING", "flase", "true or false");
    check("DYN_KV_CACHE_BLOCK_SIZE", "0", "from 1 to");
    check("DYN_ROUTER_TEMPERATURE", "NaN", "a finite number");
    check("DYN_ROUTER_TEMPERATURE", "inf", "a finite number");
    check("DYN_ROUTER_PREFILL_LOAD_SCALE", "-0.5", "0 or more");
    check("POINTSMAN_MAX_BODY_BYTES", "0", "at least 1");
    check(
        "POINTSMAN_MAX_BODY_BYTES",
        "99999999999GiB",
        "a number of bytes",
    );
    check("POINTSMAN_BODY_IDLE_MS", "60s", "whole milliseconds");
    check("POINTSMAN_LOG_FORMAT", "jsn", "did you mean json?");
    check("POINTSMAN_LOG", "inof", "a log filter");
    check("POINTSMAN_LOG", "info,pointsman=lots", "a log filter");
    check("POINTSMAN_HOST", "localhost", "an IP address");
    check("DYN_EPP_MODE", "dynamo", "there is no runtime mode");
    check("DYN_EPP_MODE", "standalon", "did you mean standalone?");
    check(
        "DYN_EPP_TOPOLOGY_MODE",
        "disaggregated",
        "not supported yet",
    );
}

#[test]
fn an_empty_value_counts_as_unset() {
    let settings = read(&[("POINTSMAN_EXT_PROC_PORT", ""), ("DYN_MODEL_NAME", "  ")]).unwrap();
    assert_eq!(settings.serve.ext_proc.port(), 9002);
    assert_eq!(settings.model_name, None);
}

#[test]
fn booleans_share_one_vocabulary() {
    let check = |text: &str, expected: bool| {
        let settings = read(&[("DYN_SECURE_SERVING", text)]).unwrap();
        assert_eq!(
            settings.serve.security == Security::SelfSigned,
            expected,
            "{text}"
        );
    };
    for text in ["1", "true", "ON", " Yes "] {
        check(text, true);
    }
    for text in ["0", "False", "off", "NO"] {
        check(text, false);
    }
}

#[test]
fn a_log_filter_may_name_modules() {
    let filter = "warn,pointsman=debug";
    assert_eq!(
        read(&[("POINTSMAN_LOG", filter)]).unwrap().log.filter,
        filter
    );
}

#[test]
fn bytes_may_carry_a_unit() {
    let check = |text: &str, expected: usize| {
        let settings = read(&[("POINTSMAN_MAX_BODY_BYTES", text)]).unwrap();
        assert_eq!(settings.serve.limits.body_bytes, expected, "{text}");
    };
    check("1000", 1000);
    check("8KiB", 8192);
    check("2 mib", 2 << 20);
}

#[test]
fn a_variable_wins_over_the_file_and_the_file_over_the_default() {
    let yaml = "server:\n  ext_proc_port: 7001\n  health_port: 7002\n";
    let settings = read_file(yaml, &[("POINTSMAN_EXT_PROC_PORT", "8001")]).unwrap();
    assert_eq!(settings.serve.ext_proc.port(), 8001);
    assert_eq!(settings.serve.health.port(), 7002);
    assert_eq!(settings.admin.unwrap().port(), 9090);
}

#[test]
fn port_auto_is_any_port_and_admin_port_zero_is_none() {
    let settings = read(&[
        ("DYN_EPP_METRICS_PORT", "auto"),
        ("POINTSMAN_HEALTH_PORT", "auto"),
    ])
    .unwrap();
    assert_eq!(settings.admin.unwrap().port(), 0);
    assert_eq!(settings.serve.health.port(), 0);
    let settings = read(&[("DYN_EPP_METRICS_PORT", "0")]).unwrap();
    assert_eq!(settings.admin, None);
}

#[test]
fn two_settings_may_not_name_one_port() {
    let found = mistakes(read(&[("POINTSMAN_HEALTH_PORT", "9090")]));
    assert!(
        found[0].contains("9090") && found[0].contains("POINTSMAN_HEALTH_PORT"),
        "{found:?}"
    );
}

#[test]
fn an_unknown_variable_of_ours_is_refused_with_the_name_that_was_meant() {
    let found = mistakes(read(&[
        ("POINTSMAN_HEATLH_PORT", "1"),
        ("POINTSMAN_WORKER_FILE", "x"),
    ]));
    assert_eq!(found.len(), 2, "{found:?}");
    let all = found.join("\n");
    assert!(all.contains("did you mean POINTSMAN_HEALTH_PORT?"), "{all}");
    assert!(
        all.contains("did you mean POINTSMAN_WORKERS_FILE?"),
        "{all}"
    );
}

#[test]
fn variables_that_kubernetes_makes_of_a_service_are_not_ours() {
    let links = [
        ("POINTSMAN_SERVICE_HOST", "10.0.0.1"),
        ("POINTSMAN_SERVICE_PORT", "9002"),
        ("POINTSMAN_SERVICE_PORT_GRPC", "9002"),
        ("POINTSMAN_PORT", "tcp://10.0.0.1:9002"),
        ("POINTSMAN_PORT_9002_TCP", "tcp://10.0.0.1:9002"),
        ("POINTSMAN_EPP_PORT_9002_TCP_ADDR", "10.0.0.1"),
        ("POINTSMAN_LAB_CACHE", "/tmp"),
        ("OTHER_THING", "x"),
    ];
    assert!(read(&links).is_ok());
}

#[test]
fn an_unknown_key_of_the_file_is_refused_with_the_key_that_was_meant() {
    let check = |yaml: &str, expected: &str| {
        let found = mistakes(read_file(yaml, &[]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("settings.yaml") && found[0].contains(expected),
            "{found:?}"
        );
    };
    check("blok_size: 16", "did you mean block_size?");
    check(
        "server:\n  healthport: 1",
        "did you mean server.health_port?",
    );
    check("temperature: 0.5", "did you mean router.temperature?");
    check(
        "DYN_MODEL_NAME: m",
        "in the settings file this is model_name",
    );
    check("POINTSMAN_CONFIG: m", "environment only");
    check("qwertyuiop: 1", "lists them all");
    check("block_size: [16]", "expected a single value");
    check("block_size: sixteen", "sixteen");
    check("- block_size", "expected a mapping");
    check("block_size: 16\nblock_size: 32", "block_size");
}

#[test]
fn an_empty_file_and_an_empty_key_set_nothing() {
    let default = format!("{:?}", read(&[]).unwrap());
    for yaml in ["", "# nothing\n", "model_name:\nserver:\n"] {
        assert_eq!(
            format!("{:?}", read_file(yaml, &[]).unwrap()),
            default,
            "{yaml}"
        );
    }
}

#[test]
fn every_mistake_is_reported_at_once() {
    let yaml = "blok_size: 16\nserver: {health_port: x}\ntokenizer: {timeout_ms: y}";
    let found = mistakes(read_file(
        yaml,
        &[
            ("DYN_SECURE_SERVING", "maybe"),
            ("DYN_EPP_TOKENIZATION_TIMEOUT_MS", "7"),
            ("DYN_EPP_MODE", "dynamo"),
            ("POINTSMAN_TPYO", "1"),
            ("DYN_ROUTER_POLICY_CONFIG", "/does/not/exist.yaml"),
        ],
    ));
    let all = found.join("\n");
    for part in [
        "blok_size",
        "server.health_port",
        "tokenizer.timeout_ms",
        "DYN_SECURE_SERVING",
        "DYN_EPP_MODE",
        "POINTSMAN_TPYO",
        "/does/not/exist.yaml",
    ] {
        assert!(all.contains(part), "{part} is not in\n{all}");
    }
    assert_eq!(found.len(), 7, "{all}");
}

#[test]
fn the_settings_file_itself_must_be_readable_yaml() {
    let scratch = Scratch::new();
    let check = |path: &str, expected: &str| {
        let found = mistakes(read(&[("POINTSMAN_CONFIG", path)]));
        assert!(
            found[0].contains(path) && found[0].contains(expected),
            "{found:?}"
        );
    };
    check("/does/not/exist.yaml", "cannot read");
    check(scratch.path().to_str().unwrap(), "directory");
    check(
        scratch.file("a.yaml", "a: [").to_str().unwrap(),
        "not valid YAML",
    );
}

#[test]
fn output_blocks_follow_active_blocks_unless_asked_for() {
    let settings = read(&[("DYN_ROUTER_TRACK_ACTIVE_BLOCKS", "false")]).unwrap();
    assert!(!settings.router.router_track_output_blocks);
    let found = mistakes(read(&[
        ("DYN_ROUTER_TRACK_ACTIVE_BLOCKS", "false"),
        ("DYN_ROUTER_TRACK_OUTPUT_BLOCKS", "true"),
    ]));
    assert!(
        found[0].contains("DYN_ROUTER_TRACK_OUTPUT_BLOCKS"),
        "{found:?}"
    );
}

#[test]
fn an_alias_is_read_where_the_name_itself_is_not_set() {
    let uses_events = |variables: &[(&str, &str)]| read(variables).unwrap().router.use_kv_events;
    let alias = ("DYN_USE_KV_EVENTS", "false");
    assert!(!uses_events(&[alias]));
    assert!(uses_events(&[alias, ("DYN_ROUTER_USE_KV_EVENTS", "true")]));
}

const POLICY_FILE: &str = "\
worker_selection:
  aggregated: lb
  instances:
    - name: lb
      type: anything
";

#[test]
fn the_policy_file_fills_the_router_configuration() {
    let scratch = Scratch::new();
    let path = scratch.file("policy.yaml", POLICY_FILE);
    let settings = read(&[
        ("DYN_ROUTER_POLICY_CONFIG", path.to_str().unwrap()),
        ("DYN_ROUTER_WORKER_SELECTION_POLICY", "default"),
    ])
    .unwrap();
    assert!(settings.router.worker_selection.is_some());
    assert_eq!(
        settings.router.worker_selection_override.as_deref(),
        Some("default")
    );
}

#[test]
fn an_empty_policy_file_is_the_built_in_policy_everywhere() {
    let scratch = Scratch::new();
    for text in ["", "\n# nothing yet\n"] {
        let path = scratch.file("policy.yaml", text);
        let settings = read(&[("DYN_ROUTER_POLICY_CONFIG", path.to_str().unwrap())]).unwrap();
        assert!(settings.router.worker_selection.is_none(), "{text:?}");
    }
}

#[test]
fn a_policy_file_that_cannot_be_read_is_named() {
    let scratch = Scratch::new();
    let file = scratch.file("file", "");
    let check = |path: &std::path::Path| {
        let path = path.to_str().unwrap();
        let found = mistakes(read(&[("DYN_ROUTER_POLICY_CONFIG", path)]));
        assert!(found[0].contains(path), "{found:?}");
        assert!(found[0].contains("DYN_ROUTER_POLICY_CONFIG"), "{found:?}");
    };
    check(&scratch.path().join("missing.yaml"));
    check(scratch.path());
    check(&file.join("below-a-file.yaml"));
}

#[test]
fn a_policy_file_with_an_unknown_key_is_refused_by_that_key() {
    let scratch = Scratch::new();
    let path = scratch.file("policy.yaml", &POLICY_FILE.replace("aggregated", "default"));
    let found = mistakes(read(&[(
        "DYN_ROUTER_POLICY_CONFIG",
        path.to_str().unwrap(),
    )]));
    assert!(found[0].contains("default"), "{found:?}");
}

#[test]
fn the_configuration_page_is_printed_from_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    assert!(
        page == super::markdown(),
        "docs/configuration.md is stale: cargo run -- settings --markdown > docs/configuration.md"
    );
}

#[test]
fn without_events_what_is_routed_is_believed_for_a_time() {
    let router = |variables: &[(&str, &str)]| read(variables).unwrap().router;
    let plain = router(&[]);
    assert!(plain.use_kv_events && plain.router_predicted_ttl_secs.is_none());
    let approximate = router(&[
        ("DYN_USE_KV_EVENTS", "false"),
        ("DYN_ROUTER_TTL_SECS", "7.5"),
    ]);
    assert!(!approximate.use_kv_events);
    assert_eq!(approximate.router_ttl_secs.to_string(), "7.5");
    let bridged = router(&[("DYN_ROUTER_PREDICTED_TTL_SECS", "2")]);
    assert_eq!(bridged.router_predicted_ttl_secs, Some(2.0));
    assert!(bridged.validate().is_ok() && approximate.validate().is_ok());
}

#[test]
fn beliefs_that_contradict_each_other_are_refused() {
    for (variables, named) in [
        (
            [
                ("DYN_ROUTER_USE_KV_EVENTS", "false"),
                ("DYN_ROUTER_PREDICTED_TTL_SECS", "2"),
            ],
            "DYN_ROUTER_PREDICTED_TTL_SECS",
        ),
        (
            [
                ("DYN_ROUTER_USE_KV_EVENTS", "false"),
                ("DYN_ROUTER_TTL_SECS", "0"),
            ],
            "DYN_ROUTER_TTL_SECS",
        ),
        (
            [
                ("DYN_ROUTER_USE_KV_EVENTS", "true"),
                ("DYN_ROUTER_PREDICTED_TTL_SECS", "0"),
            ],
            "DYN_ROUTER_PREDICTED_TTL_SECS",
        ),
    ] {
        let found = mistakes(read(&variables));
        assert!(found.len() == 1 && found[0].starts_with(named), "{found:?}");
    }
}

#[test]
fn a_shared_cache_is_named_by_its_url() {
    let cache = |variables: &[(&str, &str)]| read(variables).unwrap().shared_cache.config();
    assert_eq!(cache(&[]), None);
    assert_eq!(cache(&[("DYN_SHARED_CACHE_TYPE", "none")]), None);
    let url = ("POINTSMAN_SHARED_CACHE_URL", "http://10.0.0.9:7000/query");
    assert_eq!(cache(&[url]).unwrap().deadline, Duration::from_millis(5));
    let slow = cache(&[url, ("POINTSMAN_SHARED_CACHE_TIMEOUT_MS", "20")]);
    assert_eq!(slow.unwrap().deadline, Duration::from_millis(20));
    let found = mistakes(read(&[("POINTSMAN_SHARED_CACHE_URL", "https://cache")]));
    assert!(found[0].contains("http://10.0.0.9:7000/query"), "{found:?}");
    let found = mistakes(read(&[("DYN_SHARED_CACHE_TYPE", "hicache")]));
    assert!(found[0].contains("POINTSMAN_SHARED_CACHE_URL"), "{found:?}");
}

#[test]
fn peers_need_a_port_and_an_address_each() {
    const PORT: &str = "POINTSMAN_REPLICA_SYNC_PORT";
    const PEERS: &str = "POINTSMAN_REPLICA_SYNC_PEERS";
    let sync = |settings: &[(&str, &str)]| read(settings).unwrap().selection.replica_sync;
    assert_eq!(sync(&[]), None);
    let of = |port, peers: &[&str]| {
        let peers = peers.iter().map(|peer| (*peer).to_owned()).collect();
        Some(super::selection::ReplicaSync { port, peers })
    };
    let two = "tcp://a:9092, tcp://[::1]:9092";
    assert_eq!(
        sync(&[(PORT, "9092"), (PEERS, two)]),
        of(9092, &["tcp://a:9092", "tcp://[::1]:9092"])
    );
    assert_eq!(sync(&[(PORT, "auto")]), of(0, &[]));
    assert_eq!(sync(&[("DYN_EPP_REPLICA_SYNC_PORT", "7")]), of(7, &[]));
    let without = mistakes(read(&[(PEERS, two)]));
    assert!(without[0].contains(PORT), "{without:?}");
    let bad = mistakes(read(&[(PORT, "1"), (PEERS, "tcp://a:1,b")]));
    assert!(bad.len() == 1 && bad[0].contains("\"b\""), "{bad:?}");
}
