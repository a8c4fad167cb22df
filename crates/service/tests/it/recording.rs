//! Reads the frames that engines' publishers were recorded with; `tests/data/recorded_frames.md`
//! describes the file. It knows no event and no socket.

use bytes::Bytes;

/// What one publisher sent, and what it answered replays with.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) live: Vec<Vec<Bytes>>,
    /// The answers to each question for a replay.
    pub(crate) replays: Vec<Vec<Vec<Bytes>>>,
}

/// The section of the file that has this title.
pub(crate) fn recording(title: &str) -> Recording {
    let text = include_str!("../data/recorded_frames.txt");
    let heading = format!("[{title}]");
    let section = text
        .lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    let mut recording = Recording {
        live: Vec::new(),
        replays: Vec::new(),
    };
    for line in section.filter(|line| !line.is_empty()) {
        let (word, frames) = line.split_once(' ').unwrap();
        let frames = frames.split(' ').map(frame).collect();
        match word {
            "live" => recording.live.push(frames),
            "ask" => recording.replays.push(Vec::new()),
            "answer" => recording.replays.last_mut().unwrap().push(frames),
            _ => panic!("{word} is no word of the format"),
        }
    }
    assert!(!recording.live.is_empty(), "no section {title}");
    recording
}

fn frame(hex: &str) -> Bytes {
    if hex == "-" {
        return Bytes::new();
    }
    let bytes = (0..hex.len()).step_by(2);
    bytes
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}
