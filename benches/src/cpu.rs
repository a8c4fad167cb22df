//! Reads how much CPU threads and processes have used, to the nanosecond, from `/proc`.
//! It never reads a wall clock and never asks a process to cooperate.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// CPU used so far by those threads of this process that bear `name`.
///
/// A server's threads all bear one name, so what the client and the bench itself use is left out.
pub(crate) fn of_threads(name: &str) -> io::Result<Duration> {
    sum_tasks(Path::new("/proc/self/task"), Some(name))
}

/// CPU used so far by a process that lives: user and system time of every thread it has.
pub(crate) fn of_process(pid: u32) -> io::Result<Duration> {
    sum_tasks(Path::new(&format!("/proc/{pid}/task")), None)
}

fn sum_tasks(tasks: &Path, name: Option<&str>) -> io::Result<Duration> {
    let mut total = 0_u64;
    for task in fs::read_dir(tasks)? {
        let task = task?.path();
        // A thread may end between the listing and the reading; what it used is then lost.
        let Ok(comm) = fs::read_to_string(task.join("comm")) else {
            continue;
        };
        if name.is_some_and(|name| comm.trim_end() != name) {
            continue;
        }
        let Ok(schedstat) = fs::read_to_string(task.join("schedstat")) else {
            continue;
        };
        total = total.saturating_add(nanoseconds_on_cpu(&schedstat)?);
    }
    Ok(Duration::from_nanos(total))
}

/// The first of the three figures of a `schedstat` file is the time spent on a CPU.
fn nanoseconds_on_cpu(schedstat: &str) -> io::Result<u64> {
    schedstat
        .split_ascii_whitespace()
        .next()
        .and_then(|figure| figure.parse().ok())
        .ok_or_else(|| io::Error::other(format!("no CPU time in schedstat {schedstat:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_figure_is_the_time_on_a_cpu() {
        assert_eq!(nanoseconds_on_cpu("45651 17 1\n").unwrap(), 45_651);
        assert!(nanoseconds_on_cpu("").is_err());
    }

    #[test]
    fn only_threads_of_the_name_are_counted() {
        let busy = || {
            let mut sum = 0_u64;
            while of_threads("cpu-counted").unwrap() < Duration::from_millis(2) {
                sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
            }
            of_threads("cpu-other").unwrap()
        };
        let thread = std::thread::Builder::new().name("cpu-counted".to_owned());
        let other = thread.spawn(busy).unwrap().join().unwrap();
        assert_eq!(other, Duration::ZERO);
    }
}
