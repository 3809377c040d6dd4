//! An executor's engine: Ballista's own, after the scan rule.

use std::fmt;
use std::sync::Arc;

use ballista_core::JobId;
use ballista_executor::execution_engine::{DefaultExecutionEngine, ExecutionEngine, QueryStageExecutor};
use bedplate_datafusion::{ScanRule, Scans};
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;

use crate::connections::Connections;

/// Runs the stages of queries as Ballista's own engine does, with Parquet scans by the scan service.
pub struct Engine {
    rule: ScanRule,
    inner: DefaultExecutionEngine,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl Engine {
    /// By these scans.
    pub fn new(scans: Scans) -> Self {
        let inner = DefaultExecutionEngine::with_client_pool(Arc::new(Connections::default()));
        Self { rule: ScanRule::new(scans), inner }
    }
}

impl ExecutionEngine for Engine {
    fn create_query_stage_exec(
        &self,
        job_id: JobId,
        stage_id: usize,
        task_id: usize,
        global_output_partition_ids: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        let plan = self.rule.optimize(plan, config.options())?;
        let (inner, outputs) = (&self.inner, global_output_partition_ids);
        inner.create_query_stage_exec(job_id, stage_id, task_id, outputs, plan, work_dir, config)
    }
}
