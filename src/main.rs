//! The stock endpoint picker; never holds logic of its own.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match pointsman::run(None).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Display with its causes: for whoever reads it, a backtrace says nothing.
            eprintln!("pointsman: {error:#}");
            ExitCode::FAILURE
        }
    }
}
