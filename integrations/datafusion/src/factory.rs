//! Makes the readers of a scan's streams.

use std::sync::Arc;

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::error::Result;
use datafusion::physical_plan::metrics::{
    ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, MetricType,
};
use parquet::arrow::async_reader::AsyncFileReader;

use crate::reader::ScanReader;
use crate::scans::Scans;

/// A [`ParquetFileReaderFactory`] whose readers take column chunks from the scan service, and all else from the factory that was there
/// before.
#[derive(Debug)]
pub struct ScanReaderFactory {
    scans: Scans,
    root: usize,
    default: Arc<dyn ParquetFileReaderFactory>,
}

impl ScanReaderFactory {
    pub(crate) fn new(scans: Scans, root: usize, default: Arc<dyn ParquetFileReaderFactory>) -> Self {
        Self { scans, root, default }
    }
}

impl ParquetFileReaderFactory for ScanReaderFactory {
    fn create_reader(
        &self,
        partition_index: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let default =
            self.default.create_reader(partition_index, file.clone(), metadata_size_hint, metrics)?;
        let bytes_scanned = MetricBuilder::new(metrics)
            .with_new_label("filename", file.object_meta.location.to_string())
            .with_type(MetricType::Summary)
            .with_category(MetricCategory::Bytes)
            .counter("bytes_scanned", partition_index);
        let shared = self.scans.shared.clone();
        Ok(Box::new(ScanReader::new(default, file, shared, self.root, bytes_scanned)))
    }
}
