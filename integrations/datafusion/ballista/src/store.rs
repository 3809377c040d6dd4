//! The store of the tables, and sessions that know it.

use std::path::Path;
use std::sync::Arc;

use ballista_core::utils::default_session_builder;
use bedplate_datafusion::tables::tables;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use object_store::local::LocalFileSystem;
use url::Url;

/// The URL of the store that has the tables, in every process of a cluster.
pub const STORE: &str = "bedplate://data";

/// A runtime in which the store is a folder.
///
/// # Errors
/// The folder is not there.
pub fn runtime(folder: &Path) -> Result<Arc<RuntimeEnv>> {
    let store = LocalFileSystem::new_with_prefix(folder)?;
    let url = Url::parse(STORE).map_err(|error| DataFusionError::External(Box::new(error)))?;
    let runtime = RuntimeEnvBuilder::new().build()?;
    runtime.register_object_store(&url, Arc::new(store));
    Ok(Arc::new(runtime))
}

/// A session's state in which the store is a folder.
///
/// # Errors
/// Likewise.
pub fn session_state(config: SessionConfig, folder: &Path) -> Result<SessionState> {
    let state = default_session_builder(config)?;
    Ok(SessionStateBuilder::new_from_existing(state).with_runtime_env(runtime(folder)?).build())
}

/// Registers the tables of the folder, by their places in the store.
///
/// # Errors
/// The folder has no tables; a table cannot be read.
pub async fn register(context: &SessionContext, folder: &Path) -> Result<()> {
    for (table, place) in tables(folder)? {
        context.register_parquet(table, format!("{STORE}/{place}"), ParquetReadOptions::default()).await?;
    }
    Ok(())
}
