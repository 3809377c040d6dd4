//! Measures how long decoders wait for bytes, whichever factory reads. Benchmarks compare with it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use datafusion::config::ConfigOptions;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::FutureExt;
use futures::future::BoxFuture;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::file::metadata::ParquetMetaData;

use crate::rule::replace_factories;

/// What was measured.
#[derive(Debug, Default)]
pub struct Meter {
    waited_ns: AtomicU64,
    bytes: AtomicU64,
}

impl Meter {
    /// How long decoders waited for bytes, summed over all streams, in nanoseconds.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }

    /// The bytes that they got.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    async fn measure<T>(
        &self,
        bytes: u64,
        read: impl Future<Output = parquet::errors::Result<T>>,
    ) -> parquet::errors::Result<T> {
        let begin = Instant::now();
        let read = read.await;
        self.waited_ns.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        if read.is_ok() {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        read
    }
}

/// An optimizer rule that measures the Parquet scans of finished plans. It comes after a [`ScanRule`](crate::ScanRule).
#[derive(Debug)]
pub struct MeasureRule {
    meter: Arc<Meter>,
}

impl MeasureRule {
    /// With this meter.
    pub fn new(meter: Arc<Meter>) -> Self {
        Self { meter }
    }
}

impl PhysicalOptimizerRule for MeasureRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        replace_factories(plan, |_, factory| {
            Some(Arc::new(MeasuredFactory { inner: factory?, meter: self.meter.clone() }))
        })
    }

    fn name(&self) -> &str {
        "bedplate_measure"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct MeasuredFactory {
    inner: Arc<dyn ParquetFileReaderFactory>,
    meter: Arc<Meter>,
}

impl ParquetFileReaderFactory for MeasuredFactory {
    fn create_reader(
        &self,
        partition_index: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let inner = self.inner.create_reader(partition_index, file, metadata_size_hint, metrics)?;
        Ok(Box::new(MeasuredReader { inner, meter: self.meter.clone() }))
    }
}

struct MeasuredReader {
    inner: Box<dyn AsyncFileReader + Send>,
    meter: Arc<Meter>,
}

impl AsyncFileReader for MeasuredReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, parquet::errors::Result<Bytes>> {
        let bytes = range.end - range.start;
        self.meter.measure(bytes, self.inner.get_bytes(range)).boxed()
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, parquet::errors::Result<Vec<Bytes>>> {
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        self.meter.measure(bytes, self.inner.get_byte_ranges(ranges)).boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, parquet::errors::Result<Arc<ParquetMetaData>>> {
        self.inner.get_metadata(options)
    }
}
