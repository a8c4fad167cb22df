//! Reads how much CPU threads and processes have used, to the nanosecond.
//! It never reads a wall clock and never asks a process to cooperate.

use std::fs;
use std::io;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;

/// CPU used so far by those threads of this process that bear `name` and live.
///
/// A server's threads all bear one name, so what the client and the bench itself use is left out.
pub(crate) fn of_threads(name: &str) -> io::Result<Duration> {
    let mut total = 0_u64;
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        // A thread may end between the listing and the reading.
        let Ok(comm) = fs::read_to_string(task.join("comm")) else {
            continue;
        };
        if comm.trim_end() == name {
            let schedstat = fs::read_to_string(task.join("schedstat"))?;
            total = total.saturating_add(nanoseconds_on_cpu(&schedstat)?);
        }
    }
    Ok(Duration::from_nanos(total))
}

/// CPU used so far by a process: user and system time of its threads, of those that have ended too.
pub(crate) fn of_process(pid: u32) -> io::Result<Duration> {
    let pid = Pid::from_raw(i32::try_from(pid).map_err(io::Error::other)?);
    Ok(ClockId::pid_cpu_clock_id(pid)?.now()?.into())
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

    fn on_thread<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(work).unwrap().join().unwrap()
    }

    fn burn_until(enough: impl Fn() -> bool) {
        let mut sum = 0_u64;
        while !enough() {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
    }

    #[test]
    fn the_first_figure_is_the_time_on_a_cpu() {
        assert_eq!(nanoseconds_on_cpu("45651 17 1\n").unwrap(), 45_651);
        assert!(nanoseconds_on_cpu("").is_err());
    }

    #[test]
    fn only_threads_of_the_name_are_counted() {
        let other = on_thread("cpu-counted", || {
            burn_until(|| of_threads("cpu-counted").unwrap() >= Duration::from_millis(2));
            of_threads("cpu-other").unwrap()
        });
        assert_eq!(other, Duration::ZERO);
    }

    #[test]
    fn a_process_keeps_the_time_of_threads_that_ended() {
        let spent = Duration::from_millis(5);
        on_thread("cpu-ended", move || {
            burn_until(|| of_threads("cpu-ended").unwrap() >= spent);
        });
        assert!(of_process(std::process::id()).unwrap() >= spent);
    }
}
