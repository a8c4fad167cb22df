//! The stock endpoint picker; never holds logic of its own.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    pointsman::run(None).await
}
