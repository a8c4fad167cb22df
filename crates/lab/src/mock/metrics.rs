//! What `/metrics` says, under the names of vLLM or of `SGLang`.
//! Never counts anything: it reads what the ranks publish.

use std::fmt::Write as _;

use super::FleetConfig;
use super::engine::Gauges;
use super::latency::{Histogram, Latencies};

/// Whose names `/metrics` uses. The buckets of histograms are vLLM's in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricsDialect {
    #[default]
    Vllm,
    Sglang,
}

/// Largest padding that can be asked for.
pub(super) const MOST_PADDING_BYTES: usize = 64 << 20;
/// A comment line of 64 bytes, as long as those that describe a metric.
const PADDING: &str = "# this line is here to make the body longer, it means nothing.\n";

/// One rank's figures.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) gauges: Gauges,
    pub(super) latencies: Latencies,
}

/// The body for a worker's ranks, the first one being rank 0.
pub(super) fn body(config: &FleetConfig, ranks: &[Figures], seconds_since_epoch: u64) -> String {
    let mut page = Page {
        text: String::new(),
        config,
        ranks,
    };
    match config.metrics_dialect {
        MetricsDialect::Vllm => page.vllm(seconds_since_epoch),
        MetricsDialect::Sglang => page.sglang(),
    }
    page.pad();
    page.text
}

struct Page<'a> {
    text: String,
    config: &'a FleetConfig,
    ranks: &'a [Figures],
}

impl Page<'_> {
    fn vllm(&mut self, seconds_since_epoch: u64) {
        let block_size = self.config.engine.block_size;
        self.each("vllm:num_requests_running", "gauge", |gauges| {
            gauges.running.to_string()
        });
        self.each("vllm:num_requests_waiting", "gauge", |gauges| {
            gauges.waiting.to_string()
        });
        self.each("vllm:kv_cache_usage_perc", "gauge", usage);
        self.each("vllm:prefix_cache_queries_total", "counter", |gauges| {
            gauges.prefix_queries.to_string()
        });
        self.each("vllm:prefix_cache_hits_total", "counter", |gauges| {
            gauges.prefix_hits.to_string()
        });
        self.each("vllm:num_preemptions_total", "counter", |gauges| {
            gauges.preemptions.to_string()
        });
        self.info("vllm:cache_config_info", |gauges| {
            let blocks = gauges.total_blocks;
            format!(",block_size=\"{block_size}\",num_gpu_blocks=\"{blocks}\"")
        });
        self.lora_info(seconds_since_epoch);
        self.histogram("vllm:time_to_first_token_seconds", |latencies| {
            &latencies.first_token
        });
        self.histogram("vllm:inter_token_latency_seconds", |latencies| {
            &latencies.inter_token
        });
    }

    fn sglang(&mut self) {
        let block_size = self.config.engine.block_size;
        self.each("sglang:num_running_reqs", "gauge", |gauges| {
            gauges.running.to_string()
        });
        self.each("sglang:num_queue_reqs", "gauge", |gauges| {
            gauges.waiting.to_string()
        });
        self.each("sglang:token_usage", "gauge", usage);
        self.each("sglang:prompt_tokens_total", "counter", |gauges| {
            gauges.prefix_queries.to_string()
        });
        self.each("sglang:cached_tokens_total", "counter", |gauges| {
            gauges.prefix_hits.to_string()
        });
        self.info("sglang:cache_config_info", |gauges| {
            let pages = gauges.total_blocks;
            format!(",page_size=\"{block_size}\",num_pages=\"{pages}\"")
        });
        self.histogram("sglang:time_to_first_token_seconds", |latencies| {
            &latencies.first_token
        });
        self.histogram("sglang:inter_token_latency_seconds", |latencies| {
            &latencies.inter_token
        });
    }

    fn each(&mut self, name: &str, kind: &str, value: impl Fn(&Gauges) -> String) {
        self.describe(name, kind);
        for (dp_rank, figures) in self.ranks.iter().enumerate() {
            let labels = self.labels(dp_rank);
            self.line(name, &labels, &value(&figures.gauges));
        }
    }

    /// A gauge of 1 that says something by its labels.
    fn info(&mut self, name: &str, more: impl Fn(&Gauges) -> String) {
        self.describe(name, "gauge");
        for (dp_rank, figures) in self.ranks.iter().enumerate() {
            let labels = self.labels(dp_rank) + &more(&figures.gauges);
            self.line(name, &labels, "1");
        }
    }

    /// The adapters of all ranks in one line, whose value is the time of writing: readers take the newest line.
    fn lora_info(&mut self, seconds_since_epoch: u64) {
        let name = "vllm:lora_requests_info";
        let joined = |of: fn(&Gauges) -> &[String]| {
            let all = self.ranks.iter().flat_map(|figures| of(&figures.gauges));
            let mut names: Vec<&str> = all.map(String::as_str).collect();
            names.sort_unstable();
            names.dedup();
            names.join(",")
        };
        let running = joined(|gauges| &gauges.running_adapters);
        let waiting = joined(|gauges| &gauges.waiting_adapters);
        let most = self.config.lora_adapters.len();
        let labels = format!(
            "max_lora=\"{most}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\""
        );
        self.describe(name, "gauge");
        self.line(name, &labels, &seconds_since_epoch.to_string());
    }

    fn histogram(&mut self, name: &str, of: impl Fn(&Latencies) -> &Histogram) {
        self.describe(name, "histogram");
        for (dp_rank, figures) in self.ranks.iter().enumerate() {
            let histogram = of(&figures.latencies);
            let labels = self.labels(dp_rank);
            for (bound, count) in histogram.cumulated() {
                let labels = format!("{labels},le=\"{bound}\"");
                self.line(&format!("{name}_bucket"), &labels, &count.to_string());
            }
            self.line(
                &format!("{name}_sum"),
                &labels,
                &histogram.sum().to_string(),
            );
            self.line(
                &format!("{name}_count"),
                &labels,
                &histogram.count().to_string(),
            );
        }
    }

    fn labels(&self, dp_rank: usize) -> String {
        let model = &self.config.model;
        match self.config.metrics_dialect {
            MetricsDialect::Vllm => format!("engine=\"{dp_rank}\",model_name=\"{model}\""),
            MetricsDialect::Sglang => format!("dp_rank=\"{dp_rank}\",model_name=\"{model}\""),
        }
    }

    fn describe(&mut self, name: &str, kind: &str) {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: &str) {
        let _ = writeln!(self.text, "{name}{{{labels}}} {value}");
    }

    fn pad(&mut self) {
        let lines = self
            .config
            .engine
            .metrics_padding_bytes
            .div_ceil(PADDING.len());
        self.text.push_str(&PADDING.repeat(lines));
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "block counts are far below 2^52"
)]
fn usage(gauges: &Gauges) -> String {
    let share = gauges.blocks_in_use as f64 / gauges.total_blocks.max(1) as f64;
    format!("{share:.6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(config: &FleetConfig, gauges: Gauges, expected: &str) {
        let figures = Figures {
            gauges,
            latencies: Latencies::default(),
        };
        let written = body(config, &[figures], 7);
        assert!(written.lines().any(|line| line == expected), "{written}");
    }

    #[test]
    fn without_adapters_their_labels_are_empty() {
        check(
            &FleetConfig::default(),
            Gauges::default(),
            "vllm:lora_requests_info{max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 7",
        );
    }

    #[test]
    fn an_adapter_is_named_once_however_many_requests_it_has() {
        let config = FleetConfig {
            lora_adapters: vec!["a".to_owned(), "b".to_owned()],
            ..FleetConfig::default()
        };
        let gauges = Gauges {
            running_adapters: ["b", "a", "b"].map(str::to_owned).to_vec(),
            waiting_adapters: vec!["a".to_owned()],
            ..Gauges::default()
        };
        check(
            &config,
            gauges,
            "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a,b\",waiting_lora_adapters=\"a\"} 7",
        );
    }

    #[test]
    fn the_other_dialect_has_its_own_names() {
        let config = FleetConfig {
            metrics_dialect: MetricsDialect::Sglang,
            ..FleetConfig::default()
        };
        let gauges = Gauges {
            waiting: 3,
            ..Gauges::default()
        };
        check(
            &config,
            gauges,
            "sglang:num_queue_reqs{dp_rank=\"0\",model_name=\"mock-model\"} 3",
        );
    }

    #[test]
    fn padding_is_made_of_comment_lines() {
        let mut config = FleetConfig::default();
        let plain = body(&config, &[], 7);
        config.engine.metrics_padding_bytes = 1_000;
        let padded = body(&config, &[], 7);
        let padding = padded.strip_prefix(&plain).unwrap();
        assert!(padding.len() >= 1_000);
        assert!(padding.lines().all(|line| line.starts_with("# ")));
    }
}
