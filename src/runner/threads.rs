//! Starts the program anew with the tokenizer library's threads set; never decides anything else.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// One thread for a text, and none that spins: the threads are ours to give. The library takes
/// both from its environment, once, and from nowhere else.
const VARIABLES: [(&str, &str); 2] = [("FASTOKENS_BPE_THREADS", "1"), ("FASTOKENS_SPIN_US", "0")];

/// Returns at once where both are set, by whomever. Otherwise the same program takes this
/// process's place with the missing ones set; if that fails, things go on as they are.
pub(super) fn settle(is_set: impl Fn(&str) -> bool) -> Result<(), io::Error> {
    let missing: Vec<_> = VARIABLES
        .into_iter()
        .filter(|(name, _)| !is_set(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut arguments = std::env::args_os();
    let mut again = Command::new(std::env::current_exe()?);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    Err(again.args(arguments).envs(missing).exec())
}
