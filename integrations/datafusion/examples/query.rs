//! Runs SQL on a folder of Parquet files: `query FOLDER 'SELECT count(*) FROM data'`.

use bedplate_datafusion::{Scans, Service};
use datafusion::prelude::{ParquetReadOptions, SessionContext};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (Some(folder), Some(sql)) = (std::env::args().nth(1), std::env::args().nth(2)) else {
        return Err(
            "two arguments are needed: a folder of Parquet files, and SQL in which its name is `data`".into(),
        );
    };
    // `Service::connect("SOCKET")` shares with other processes, by `bedplate scan serve`.
    let scans = Scans::new(Service::start()?);
    let context = SessionContext::new();
    scans.install(&context);
    context.register_parquet("data", folder, ParquetReadOptions::default()).await?;
    context.sql(&sql).await?.show().await?;
    println!("{:?}", scans.statistics());
    Ok(())
}
