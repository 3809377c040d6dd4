//! Table scans of local Parquet files for DataFusion: read past the page cache, ahead of the decoder, and shared between queries and,
//! by the daemon `bedplate scan serve`, between processes.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use bedplate_datafusion::{Scans, Service};
//! use datafusion::prelude::{ParquetReadOptions, SessionContext};
//!
//! let context = SessionContext::new();
//! Scans::new(Service::start()?).install(&context);
//! context.register_parquet("lineitem", "data/lineitem", ParquetReadOptions::default()).await?;
//! context.sql("SELECT count(*) FROM lineitem WHERE l_tax > 0.05").await?.show().await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Scans::install`] adds an optimizer rule ([`ScanRule`]) to a session. The rule puts another reader factory
//! ([`ScanReaderFactory`]) into each Parquet scan of a finished plan. Its readers take column chunks from the service. Metadata, and
//! whatever the service does not read, comes from the factory that was there before.

mod buffers;
mod deliver;
mod factory;
pub mod limits;
mod local;
pub mod measure;
mod predict;
mod reader;
mod rule;
mod scans;
mod spans;
mod statistics;
pub mod tables;
mod window;

pub use bedplate_scan::Service;
pub use factory::ScanReaderFactory;
pub use rule::{ScanRule, replace_factories};
pub use scans::{Options, Scans};
pub use statistics::Statistics;
