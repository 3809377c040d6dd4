//! The reader of one stream: by the service, or by the default reader, which it has beside it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::physical_plan::metrics::Count;
use futures::FutureExt;
use futures::future::BoxFuture;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::Result;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};

use crate::limits::{MAX_READERS_PER_STREAM, RESIDENCY_SAMPLES};
use crate::local::Opened;
use crate::predict::Predictor;
use crate::scans::{Lease, Shared};
use crate::window::Window;

/// How a stream reads.
enum Way {
    /// It has not read a column chunk yet.
    Undecided,
    Service(Box<Window>, #[expect(dead_code, reason = "it counts the readers until it is dropped")] Lease),
    Default,
}

/// The reader. Metadata, indexes and filters come from the default reader, and column chunks from the service.
pub struct ScanReader {
    pub(crate) default: Box<dyn AsyncFileReader + Send>,
    file: PartitionedFile,
    shared: Arc<Shared>,
    /// Which of the local stores has the file.
    root: usize,
    metadata: Option<Arc<ParquetMetaData>>,
    way: Way,
    /// DataFusion's own counter of what is read of a file.
    bytes_scanned: Count,
}

impl ScanReader {
    pub(crate) fn new(
        default: Box<dyn AsyncFileReader + Send>,
        file: PartitionedFile,
        shared: Arc<Shared>,
        root: usize,
        bytes_scanned: Count,
    ) -> Self {
        let way = match file.object_meta.size < shared.options.min_file_bytes {
            true => {
                shared.counters.default_streams.fetch_add(1, Ordering::Relaxed);
                Way::Default
            }
            false => Way::Undecided,
        };
        Self { default, file, shared, root, metadata: None, way, bytes_scanned }
    }

    /// The part of the ranges that the service reads. `None`: the default reader is to read them.
    async fn read(&mut self, ranges: &[Range<u64>]) -> Result<Option<Vec<Bytes>>> {
        if matches!(self.way, Way::Default) || ranges.is_empty() {
            return Ok(None);
        }
        let metadata = match &self.metadata {
            Some(metadata) => metadata.clone(),
            // DataFusion reads by another reader than the one that it asked for the metadata, if it looked at bloom filters.
            None => {
                let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Skip);
                let metadata = self.default.get_metadata(Some(&options)).await?;
                self.metadata.insert(metadata).clone()
            }
        };
        let group = match &self.way {
            Way::Service(window, _) => window.group_of(ranges),
            _ => Predictor::new(metadata.clone(), self.file.range.clone()).group_of_all(ranges),
        };
        let Some(group) = group else { return Ok(None) };
        if matches!(self.way, Way::Undecided) {
            self.way = self.decide(metadata, group, ranges).await;
            let counters = &self.shared.counters;
            let counter = match self.way {
                Way::Service(..) => &counters.served_streams,
                _ => &counters.default_streams,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let Way::Service(window, _) = &mut self.way else { return Ok(None) };
        match window.read(group, ranges).await {
            Ok(Some(answer)) => {
                let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
                self.shared.counters.served_bytes.fetch_add(bytes, Ordering::Relaxed);
                self.bytes_scanned.add(bytes as usize);
                Ok(Some(answer))
            }
            // If the file cannot be read, the default reader says so.
            Ok(None) | Err(_) => {
                self.way = Way::Default;
                self.shared.counters.fallbacks.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// Opens the file for the service, if it is one for it.
    async fn decide(&mut self, metadata: Arc<ParquetMetaData>, group: usize, ranges: &[Range<u64>]) -> Way {
        let Some(path) = self.shared.roots[self.root].path(&self.file.object_meta) else {
            return Way::Default;
        };
        let mut predictor = Predictor::new(metadata, self.file.range.clone());
        predictor.note(group, ranges);
        let samples: Vec<_> =
            ranges.iter().cloned().chain(predictor.next().flatten()).take(RESIDENCY_SAMPLES).collect();
        // The bytes that the decoder holds, and as many again ahead of it.
        let wanted = (Window::ranges_of(ranges) * 2).div_ceil(bedplate_scan::MAX_RANGES_HELD);
        let lease = Lease::new(self.shared.clone(), path.clone(), wanted.clamp(1, MAX_READERS_PER_STREAM));
        let (shared, listed, readers) = (self.shared.clone(), self.file.object_meta.clone(), lease.readers());
        // Opening a file, and making memory for it, takes its time.
        let opening = tokio::task::spawn_blocking(move || {
            Opened::open(&shared.service, &path, &listed, &samples, readers)
        });
        let Ok(Some(opened)) = opening.await else { return Way::Default };
        let buffers = self.shared.buffers.clone();
        let window = Window::new(opened, predictor, buffers, self.shared.options.read_ahead_bytes);
        Way::Service(Box::new(window), lease)
    }
}

impl AsyncFileReader for ScanReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            match self.read(std::slice::from_ref(&range)).await? {
                Some(mut answer) => Ok(answer.remove(0)),
                None => self.default.get_bytes(range).await,
            }
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move {
            match self.read(&ranges).await? {
                Some(answer) => Ok(answer),
                None => self.default.get_byte_ranges(ranges).await,
            }
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let metadata = self.default.get_metadata(options).await?;
            self.metadata = Some(metadata.clone());
            Ok(metadata)
        }
        .boxed()
    }
}
