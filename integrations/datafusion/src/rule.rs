//! Puts other reader factories into finished plans.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::datasource::physical_plan::parquet::{
    CachedParquetFileReaderFactory, ParquetFileReaderFactory,
};
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::scans::Scans;

/// Replaces the reader factory of each Parquet scan in a plan. `replace` has the URL of the store and the factory that was there, if
/// one was; when it returns none, the scan stays as it is.
///
/// # Errors
/// A node cannot be made with its new children.
pub fn replace_factories(
    plan: Arc<dyn ExecutionPlan>,
    replace: impl Fn(
        &ObjectStoreUrl,
        Option<Arc<dyn ParquetFileReaderFactory>>,
    ) -> Option<Arc<dyn ParquetFileReaderFactory>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let replaced = plan.transform_up(|node| {
        let Some((config, source)) = node
            .downcast_ref::<DataSourceExec>()
            .and_then(|scan| scan.downcast_to_file_source::<ParquetSource>())
        else {
            return Ok(Transformed::no(node));
        };
        let Some(factory) = replace(&config.object_store_url, source.parquet_file_reader_factory().cloned())
        else {
            return Ok(Transformed::no(node));
        };
        let source = source.clone().with_parquet_file_reader_factory(factory);
        let config: FileScanConfig =
            FileScanConfigBuilder::from(config.clone()).with_source(Arc::new(source)).build();
        Ok(Transformed::yes(DataSourceExec::from_data_source(config) as Arc<dyn ExecutionPlan>))
    })?;
    Ok(replaced.data)
}

/// An optimizer rule for finished plans: Parquet scans of local files read by the scan service.
#[derive(Debug)]
pub struct ScanRule {
    scans: Scans,
    runtime: Option<Arc<RuntimeEnv>>,
}

impl ScanRule {
    /// By these scans.
    pub fn new(scans: Scans) -> Self {
        Self { scans, runtime: None }
    }

    /// Also for scans that have no reader factory of their own, with the stores of a runtime. Scans of SQL tables have one.
    #[must_use]
    pub fn with_runtime(mut self, runtime: Arc<RuntimeEnv>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// The factory of a scan that has none.
    fn usual(&self, url: &ObjectStoreUrl) -> Option<Arc<dyn ParquetFileReaderFactory>> {
        let runtime = self.runtime.as_ref()?;
        let (store, cache) =
            (runtime.object_store(url).ok()?, runtime.cache_manager.get_file_metadata_cache());
        Some(Arc::new(CachedParquetFileReaderFactory::new(store, cache)))
    }
}

impl PhysicalOptimizerRule for ScanRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        replace_factories(plan, |url, factory| {
            let default = factory.or_else(|| self.usual(url))?;
            Some(Arc::new(self.scans.factory(url, default)?))
        })
    }

    fn name(&self) -> &str {
        "bedplate_scan"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
