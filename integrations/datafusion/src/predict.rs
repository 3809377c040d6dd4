//! Which column chunks a decoder asks for next: those of the columns that it asked for in the row group before, in the row groups
//! that follow in its part of the file.
//!
//! A decoder may skip row groups, because their statistics show that they hold no row of the result. Then nothing is predicted
//! until it has taken two row groups in sequence.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use datafusion::datasource::listing::FileRange;
use parquet::file::metadata::ParquetMetaData;

/// A file's row groups, and where in them a decoder is.
#[derive(Debug)]
pub struct Predictor {
    metadata: Arc<ParquetMetaData>,
    /// Where the column chunks of each row group are, by the first byte.
    extents: Vec<(Range<u64>, usize)>,
    /// The part of the file that is scanned.
    part: Option<FileRange>,
    current: Option<usize>,
    /// The requests of the current row group, and of the one before: the columns whose whole chunks were asked for together.
    requests: Vec<BTreeSet<usize>>,
    requests_before: Vec<BTreeSet<usize>>,
    is_backward: bool,
    is_sequential: bool,
}

impl Predictor {
    /// The predictor for a file of which a part is scanned.
    pub fn new(metadata: Arc<ParquetMetaData>, part: Option<FileRange>) -> Self {
        let mut extents: Vec<_> = (0..metadata.num_row_groups())
            .filter_map(|group| {
                let chunks =
                    (0..metadata.row_group(group).num_columns()).map(|at| chunk(&metadata, group, at));
                let extent = chunks.reduce(|one, two| one.start.min(two.start)..one.end.max(two.end))?;
                Some((extent, group))
            })
            .collect();
        extents.sort_by_key(|(extent, _)| extent.start);
        Self {
            metadata,
            extents,
            part,
            current: None,
            requests: Vec::new(),
            requests_before: Vec::new(),
            is_backward: false,
            is_sequential: true,
        }
    }

    /// The row group in whose column chunks a range is. `None`: it is something else of the file.
    pub fn group_of(&self, range: &Range<u64>) -> Option<usize> {
        let after = self.extents.partition_point(|(extent, _)| extent.start <= range.start);
        let (extent, group) = self.extents.get(after.checked_sub(1)?)?;
        (range.end <= extent.end).then_some(*group)
    }

    /// The row group in which all ranges are.
    pub fn group_of_all(&self, ranges: &[Range<u64>]) -> Option<usize> {
        let group = self.group_of(ranges.first()?)?;
        ranges.iter().all(|range| self.group_of(range) == Some(group)).then_some(group)
    }

    /// Notes that the decoder asks for these ranges of one row group.
    pub fn note(&mut self, group: usize, ranges: &[Range<u64>]) {
        if self.current != Some(group) {
            if let Some(current) = self.current {
                let expected = self.following(current).next();
                self.is_sequential = expected == Some(group);
                if !self.is_sequential {
                    self.is_backward = group < current;
                }
                self.requests_before = std::mem::take(&mut self.requests);
            }
            self.current = Some(group);
        }
        let count = self.metadata.row_group(group).num_columns();
        let columns: BTreeSet<usize> =
            (0..count).filter(|column| ranges.contains(&chunk(&self.metadata, group, *column))).collect();
        if !columns.is_empty() {
            self.requests.push(columns);
        }
    }

    /// The requests that the decoder is going to make after this row group.
    pub fn next(&self) -> impl Iterator<Item = Vec<Range<u64>>> + '_ {
        let groups =
            self.current.filter(|_| self.is_sequential).into_iter().flat_map(|at| self.following(at));
        let mut requests = self.requests_before.clone();
        requests.extend(self.requests.iter().filter(|own| !self.requests_before.contains(own)).cloned());
        groups.flat_map(move |group| {
            let chunks = |columns: &BTreeSet<usize>| {
                columns.iter().map(|column| chunk(&self.metadata, group, *column)).collect()
            };
            requests.iter().map(chunks).collect::<Vec<_>>()
        })
    }

    /// The row groups of the part that follow one.
    fn following(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        let count = self.metadata.num_row_groups();
        let forward = (!self.is_backward).then_some(group + 1..count);
        let backward = self.is_backward.then_some((0..group).rev());
        let all = forward.into_iter().flatten().chain(backward.into_iter().flatten());
        all.filter(|group| self.is_in_part(*group))
    }

    /// Whether a row group belongs to the part that is scanned. DataFusion decides by the first page of the first column.
    fn is_in_part(&self, group: usize) -> bool {
        let row_group = self.metadata.row_group(group);
        let Some(part) = &self.part else { return true };
        if row_group.num_columns() == 0 {
            return false;
        }
        let first = row_group.column(0);
        part.contains(first.dictionary_page_offset().unwrap_or_else(|| first.data_page_offset()))
    }
}

/// Where a column chunk is.
fn chunk(metadata: &ParquetMetaData, group: usize, column: usize) -> Range<u64> {
    let (start, len) = metadata.row_group(group).column(column).byte_range();
    start..start.saturating_add(len)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::file::properties::WriterProperties;

    use super::*;

    const GROUPS: usize = 5;

    /// Five row groups of three columns.
    fn metadata() -> Arc<ParquetMetaData> {
        let column =
            |at: i64| Arc::new(Int64Array::from_iter_values((0..500).map(|row| row * at))) as ArrayRef;
        let batch = RecordBatch::try_from_iter((1..4).map(|at| (format!("c{at}"), column(at)))).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let metadata =
            ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(file)).unwrap().metadata().clone();
        assert_eq!(metadata.num_row_groups(), GROUPS);
        metadata
    }

    fn chunks(metadata: &ParquetMetaData, groups: &[usize], columns: &[usize]) -> Vec<Range<u64>> {
        let columns = |group: &usize| {
            let group = *group;
            columns.iter().map(move |column| chunk(metadata, group, *column))
        };
        groups.iter().flat_map(columns).collect()
    }

    #[test]
    fn the_same_columns_of_the_following_row_groups_are_next() {
        let metadata = metadata();
        let mut predictor = Predictor::new(metadata.clone(), None);
        let next = |predictor: &Predictor| predictor.next().collect::<Vec<_>>();
        let each = |groups: &[usize], columns: &[&[usize]]| -> Vec<_> {
            let requests =
                |group: &usize| columns.iter().map(|columns| chunks(&metadata, &[*group], columns)).collect();
            groups.iter().map(requests).collect::<Vec<Vec<_>>>().concat()
        };
        assert!(next(&predictor).is_empty());
        let first = chunks(&metadata, &[0], &[0, 2]);
        assert_eq!(predictor.group_of_all(&first), Some(0));
        predictor.note(0, &first);
        assert_eq!(next(&predictor), each(&[1, 2, 3, 4], &[&[0, 2]]));
        // Another column is needed for rows that pass a filter.
        predictor.note(0, &chunks(&metadata, &[0], &[1]));
        predictor.note(1, &chunks(&metadata, &[1], &[0, 2]));
        assert_eq!(next(&predictor), each(&[2, 3, 4], &[&[0, 2], &[1]]));
        // A part of a chunk is no column that is needed.
        let start = chunk(&metadata, 2, 0).start;
        predictor.note(2, std::slice::from_ref(&(start..start + 1)));
        predictor.note(3, &chunks(&metadata, &[3], &[0]));
        assert_eq!(next(&predictor), each(&[4], &[&[0]]));
    }

    #[test]
    fn nothing_is_next_after_row_groups_were_skipped_until_two_are_in_sequence() {
        let metadata = metadata();
        let mut predictor = Predictor::new(metadata.clone(), None);
        predictor.note(0, &chunks(&metadata, &[0], &[0]));
        predictor.note(2, &chunks(&metadata, &[2], &[0]));
        assert_eq!(predictor.next().count(), 0);
        predictor.note(3, &chunks(&metadata, &[3], &[0]));
        assert_eq!(predictor.next().collect::<Vec<_>>().concat(), chunks(&metadata, &[4], &[0]));
    }

    #[test]
    fn a_decoder_may_go_backward() {
        let metadata = metadata();
        let mut predictor = Predictor::new(metadata.clone(), None);
        predictor.note(4, &chunks(&metadata, &[4], &[1]));
        predictor.note(3, &chunks(&metadata, &[3], &[1]));
        predictor.note(2, &chunks(&metadata, &[2], &[1]));
        assert_eq!(predictor.next().collect::<Vec<_>>().concat(), chunks(&metadata, &[1, 0], &[1]));
    }

    #[test]
    fn only_row_groups_of_the_part_are_next() {
        let metadata = metadata();
        let end = chunk(&metadata, 2, 0).start as i64 + 1;
        let mut predictor = Predictor::new(metadata.clone(), Some(FileRange { start: 0, end }));
        predictor.note(0, &chunks(&metadata, &[0], &[0]));
        assert_eq!(predictor.next().collect::<Vec<_>>().concat(), chunks(&metadata, &[1, 2], &[0]));
    }

    #[test]
    fn what_is_no_column_chunk_has_no_row_group() {
        let metadata = metadata();
        let predictor = Predictor::new(metadata.clone(), None);
        let last = chunk(&metadata, 4, 2);
        assert_eq!(predictor.group_of(&(last.start..last.end)), Some(4));
        assert_eq!(predictor.group_of(&(0..2)), None);
        assert_eq!(predictor.group_of(&(last.end..last.end + 5)), None);
        assert_eq!(predictor.group_of_all(&chunks(&metadata, &[0, 1], &[0])), None);
    }
}
