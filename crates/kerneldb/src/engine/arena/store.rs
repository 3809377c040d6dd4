//! The partitions of a database: one arena each, and the programs that work on it.

use std::sync::atomic::Ordering;

use super::{
    Geometry, HeapStats, Loader, Partition, candidates::ArenaCandidates, expired::ArenaCursor, log::ArenaLog,
    scan, verify,
};
use crate::{
    Config, Error, Result,
    bpf::{self, ArenaMapping, GracePeriod, LoadedObject, MapFds, ObjectSpec, Reservation},
    engine::{
        control::{Control, Secrets},
        eviction::EvictionSource,
        expiry::ExpiryCursor,
        memory_wait::MemoryPressure,
        storage::{Evacuate, LogRings, Room, SnapshotItem, Storage, Verified},
    },
    layout::kdb_config,
    limits::PARTITION_BYTES_MIN,
    stats::Stats,
};

/// The object with the operators for user space.
const CALLS_ARENA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/calls_arena.bpf.o"));

/// The arenas of one database.
pub(crate) struct ArenaStore {
    partitions: Vec<Partition>,
    secrets: Secrets,
}

impl ArenaStore {
    /// Creates the arenas and loads the programs of each. `sizes` are those of the maps that both engines have.
    /// The first object creates the maps named in `shared`, and the others share them.
    pub(crate) fn load(
        config: &Config,
        ncpus: u32,
        secrets: Secrets,
        sizes: &[(&str, u32)],
        shared: &[&str],
    ) -> Result<(ArenaStore, Vec<LoadedObject>)> {
        let limit = (config.memory_bytes / u64::from(config.partitions)) & !0xffff;
        let (mut partitions, mut objects, mut reuse) = (Vec::new(), Vec::new(), MapFds::new());
        for index in 0..config.partitions {
            let geometry =
                Geometry::new(limit, index, config.partitions, config.versions, ncpus, config.wal_ring_bytes);
            if geometry.heap + PARTITION_BYTES_MIN / 2 > geometry.limit {
                return Err(Error::Config(format!(
                    "a partition of {limit} bytes is too small for log rings of {} bytes for each of {ncpus} \
                     processors: it needs more memory or smaller rings",
                    config.wal_ring_bytes
                )));
            }
            let window = Reservation::new()?;
            let object = bpf::load(&ObjectSpec {
                name: "kdb_call",
                elf: CALLS_ARENA,
                config: geometry.config(secrets),
                constants: &[],
                reuse: &reuse,
                entries: &[sizes, &[("kdb_arena", (geometry.capacity / 4096) as u32)]].concat(),
                sizes: &[],
                arena_address: Some(window.address()),
                leave_out: None,
            })?;
            if index == 0 {
                for &name in shared {
                    reuse.insert(name.into(), object.share_map(name)?);
                }
            }
            partitions.push(Partition::create(ArenaMapping::new(window, geometry.capacity), geometry));
            objects.push(object);
        }
        Ok((ArenaStore { partitions, secrets }, objects))
    }

    fn partition(&self, index: u32) -> &Partition {
        &self.partitions[index as usize]
    }
}

impl Storage for ArenaStore {
    fn partitions(&self) -> u32 {
        self.partitions.len() as u32
    }

    fn constants(&self, partition: u32) -> kdb_config {
        self.partition(partition).geometry.config(self.secrets)
    }

    fn maps(&self) -> &'static [&'static str] {
        &["kdb_arena"]
    }

    fn foreign_map(&self) -> &'static str {
        "kdb_index"
    }

    fn wants_memory(&self, partition: u32) -> bool {
        self.partition(partition).wants_memory()
    }

    fn grow(&self, partition: u32) -> bool {
        self.partition(partition).grow()
    }

    fn grow_beyond(&self, partition: u32, seen: u64, _attempt: u32) -> bool {
        self.partition(partition).grow_beyond(seen)
    }

    fn committed(&self, partition: u32) -> u64 {
        self.partition(partition).committed()
    }

    fn prefault(&self, bytes: u64) {
        self.partitions.iter().for_each(|partition| partition.grow_to(bytes));
    }

    fn memory_pressure(&self, control: &Control, partition: u32) -> MemoryPressure {
        let partition = self.partition(partition);
        MemoryPressure::of(control.state(), |drained| {
            (partition.has_deferred(), partition.deferred_ends(drained))
        })
    }

    fn has_garbage(&self, partition: u32) -> bool {
        self.partition(partition).has_garbage()
    }

    fn waits_for_log(&self, partition: u32) -> bool {
        self.partition(partition).has_deferred()
    }

    fn lacks_slabs(&self, partition: u32) -> bool {
        self.partition(partition).lacks_slabs()
    }

    fn is_scarce(&self, partition: u32) -> bool {
        self.partition(partition).scarce()
    }

    fn free_slabs(&self, partition: u32) -> u64 {
        self.partition(partition).free_slabs()
    }

    fn is_evacuating(&self, partition: u32) -> bool {
        self.partition(partition).is_evacuating()
    }

    fn reclaim(&self, partition: u32, grace: &GracePeriod, evacuate: Option<Evacuate<'_>>) -> Result<u64> {
        self.partition(partition).reclaim(grace, evacuate)
    }

    fn heap_stats(&self) -> HeapStats {
        let mut stats = HeapStats::default();
        self.partitions.iter().for_each(|partition| partition.add_heap_stats(&mut stats));
        stats
    }

    fn loaders(&self) -> Vec<Loader<'_>> {
        self.partitions.iter().map(Loader::new).collect()
    }

    fn open_reserve(&self, partition: u32) {
        self.partition(partition).open_reserve();
    }

    fn close_reserves(&self) {
        self.partitions.iter().for_each(Partition::close_reserve);
    }

    fn bucket_of(&self, partition: u32, hash: u64) -> u32 {
        self.partition(partition).bucket_of(hash)
    }

    #[cfg(test)]
    fn first_arena(&self) -> Option<&Partition> {
        self.partitions.first()
    }

    fn add_statistics(&self, stats: &mut Stats) {
        for partition in &self.partitions {
            stats.memory_used += partition.brk();
            stats.memory_committed += partition.committed();
            stats.memory_limit += partition.geometry.limit;
            stats.entries += partition.entries();
        }
    }

    fn positions(&self) -> u64 {
        scan::positions(&self.partitions)
    }

    fn draw_position(&self, random: u64) -> u64 {
        scan::draw_position(&self.partitions, random)
    }

    fn scan(
        &self,
        control: &Control,
        timestamp: u64,
        from: u64,
        to: u64,
        f: &mut dyn FnMut(SnapshotItem<'_>),
    ) -> Result<u64> {
        scan::Reader { control, partitions: &self.partitions, timestamp }.scan(from, to, f);
        Ok(to)
    }

    fn expiry_cursor(&self) -> Box<dyn ExpiryCursor + '_> {
        Box::new(ArenaCursor::new(&self.partitions))
    }

    fn values_read_ts(&self, control: &Control) -> u64 {
        let logged = control.config.wal_ring_bytes > 0;
        if logged { control.state().drained_ts.load(Ordering::SeqCst) } else { u64::MAX }
    }

    fn eviction_source(&self, partition: u32) -> Box<dyn EvictionSource + '_> {
        Box::new(ArenaCandidates(self.partition(partition)))
    }

    fn room(&self, partition: u32, enough: u64) -> Room {
        self.partition(partition).room(enough)
    }

    fn set_usage_kind(&self, kind: u32) {
        self.partitions.iter().for_each(|partition| partition.set_usage_kind(kind));
    }

    fn set_usage_factor(&self, factor: u32) {
        self.partitions.iter().for_each(|partition| partition.set_usage_factor(factor));
    }

    fn log<'db>(&'db self, control: &'db Control) -> Box<dyn LogRings + 'db> {
        Box::new(ArenaLog::new(control, &self.partitions))
    }

    fn verify(&self, control: &Control) -> Result<Verified> {
        verify::verify(control, &self.partitions)
    }
}
