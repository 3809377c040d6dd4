//! Loading an eBPF object: configuration constants, map sizes, and maps shared with loaded objects.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};

use super::{Program, duplicate_map, kernel_error};
use crate::{
    Error, Result,
    layout::{ABI, kdb_config},
};

/// Maps by name, to be reused by further objects.
pub type MapFds = HashMap<String, OwnedFd>;

/// An object and how it is loaded.
pub(crate) struct ObjectSpec<'a> {
    /// Name in error messages.
    pub name: &'a str,
    /// The ELF object.
    pub elf: &'a [u8],
    /// Constants of the engine (section `.rodata.kdb`).
    pub config: kdb_config,
    /// Contents of further constant sections, by the section's name.
    pub constants: &'a [(&'a str, &'a [u8])],
    /// Maps to share instead of creating them.
    pub reuse: &'a MapFds,
    /// `max_entries` by map name.
    pub entries: &'a [(&'a str, u32)],
    /// Sizes of keys and values by map name, where they differ from those in the object.
    pub sizes: &'a [(&'a str, u32, u32)],
    /// The end of the names of programs that are not loaded.
    pub leave_out: Option<&'a str>,
    /// Address of the arena's window, when the arena is created by this load.
    pub arena_address: Option<u64>,
}

/// A loaded object. Dropping it unloads programs and maps that nothing else holds.
pub struct LoadedObject {
    object: Object,
}

// SAFETY: libbpf objects are plain memory and descriptors; after loading, this type only reads them.
unsafe impl Send for LoadedObject {}
// SAFETY: as above: `&self` methods only look up descriptors.
unsafe impl Sync for LoadedObject {}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    /// Objects that this thread loads instead of others, by the names of those.
    static REPLACED: std::cell::RefCell<HashMap<String, Vec<u8>>> = std::cell::RefCell::default();
}

/// Runs `f`. When `f` loads an object under one of the names in this thread, the object given here is loaded instead.
/// So a test can run a database on programs that were compiled in another way. The names are those in error messages:
/// `kdb_call` for the operators, and [`Attachment::name`](crate::attach::Attachment::name) for others.
#[cfg(any(test, feature = "testing"))]
pub fn with_objects<T>(objects: &[(&str, &[u8])], f: impl FnOnce() -> T) -> T {
    let objects = objects.iter().map(|(name, elf)| ((*name).to_owned(), elf.to_vec())).collect();
    let before = REPLACED.replace(objects);
    let result = f();
    REPLACED.set(before);
    result
}

/// Verifies and loads an object.
pub(crate) fn load(spec: &ObjectSpec<'_>) -> Result<LoadedObject> {
    let what = |step: &str| format!("cannot {step} the eBPF programs ({})", spec.name);
    let elf = spec.elf;
    #[cfg(any(test, feature = "testing"))]
    let replaced = REPLACED.with_borrow(|objects| objects.get(spec.name).cloned());
    #[cfg(any(test, feature = "testing"))]
    let elf = replaced.as_deref().unwrap_or(elf);
    let mut open = ObjectBuilder::default()
        .name(spec.name)
        .and_then(|b| b.open_memory(elf))
        .map_err(|e| kernel_error(what("open"), e))?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name.ends_with(".rodata.kdb") {
            // SAFETY: kdb_config is plain data without padding, so all of its bytes are initialized.
            let bytes = unsafe {
                std::slice::from_raw_parts((&raw const spec.config).cast::<u8>(), size_of::<kdb_config>())
            };
            map.initial_value_mut()
                .and_then(|value| value.get_mut(..bytes.len()))
                .ok_or_else(|| Error::Config(format!("{name} has an unexpected size")))?
                .copy_from_slice(bytes);
            continue;
        }
        if name.ends_with(".rodata.abi") {
            let built_for = map.initial_value_mut().and_then(|value| value.get(..8)).map(<[u8]>::to_vec);
            if built_for.as_deref() != Some(&ABI.to_ne_bytes()) {
                return Err(Error::Library(format!(
                    "{} was compiled with the headers of another version: compile it again",
                    spec.name
                )));
            }
            continue;
        }
        if let Some((_, bytes)) = spec.constants.iter().find(|(section, _)| name.ends_with(section)) {
            map.initial_value_mut()
                .and_then(|value| value.get_mut(..bytes.len()))
                .ok_or_else(|| Error::Config(format!("{name} has an unexpected size")))?
                .copy_from_slice(bytes);
            continue;
        }
        if let Some((_, entries)) = spec.entries.iter().find(|(n, _)| *n == name) {
            map.set_max_entries(*entries).map_err(|e| kernel_error(what("size the maps of"), e))?;
        }
        if let Some((_, key, value)) = spec.sizes.iter().find(|(n, ..)| *n == name) {
            map.set_key_size(*key)
                .and_then(|()| map.set_value_size(*value))
                .map_err(|e| kernel_error(what("size the maps of"), e))?;
        }
        if let Some(fd) = spec.reuse.get(&name) {
            map.reuse_fd(fd.as_fd()).map_err(|e| kernel_error(what("share the maps of"), e))?;
        } else if name == "kdb_arena"
            && let Some(address) = spec.arena_address
        {
            map.set_map_extra(address).map_err(|e| kernel_error(what("place the arena of"), e))?;
        }
    }
    for mut program in open.progs_mut() {
        if spec.leave_out.is_some_and(|end| program.name().to_string_lossy().ends_with(end)) {
            program.set_autoload(false);
        }
    }
    let object = open.load().map_err(|e| kernel_error(what("load"), e))?;
    Ok(LoadedObject { object })
}

impl LoadedObject {
    /// Descriptor of a map.
    pub fn map_fd(&self, name: &str) -> Result<BorrowedFd<'_>> {
        self.object
            .maps()
            .find(|m| m.name() == name)
            // SAFETY: the descriptor is owned by the object, which the result borrows.
            .map(|m| unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&m.as_fd())) })
            .ok_or_else(|| Error::Config(format!("the eBPF object has no map {name}")))
    }

    /// Whether there is a map whose name has this end, with values of this size.
    pub(crate) fn has_map(&self, end: &str, value_size: usize) -> bool {
        let mut maps = self.object.maps();
        maps.any(|map| map.name().to_string_lossy().ends_with(end) && map.value_size() as usize == value_size)
    }

    /// Updates one element of a map.
    pub fn update_map(&self, name: &str, key: &[u8], value: &[u8]) -> Result<()> {
        let map = self.object.maps().find(|m| m.name() == name);
        let map = map.ok_or_else(|| Error::Config(format!("the eBPF object has no map {name}")))?;
        map.update(key, value, MapFlags::ANY).map_err(|e| kernel_error(format!("cannot update {name}"), e))
    }

    /// Duplicates a map's descriptor, for sharing the map with further objects.
    pub fn share_map(&self, name: &str) -> Result<OwnedFd> {
        duplicate_map(&self.map_fd(name)?)
    }

    /// Handle to a map, for system calls on it.
    pub fn map(&self, name: &str) -> Result<MapHandle> {
        let map = self
            .object
            .maps()
            .find(|m| m.name() == name)
            .ok_or_else(|| Error::Config(format!("the eBPF object has no map {name}")))?;
        MapHandle::try_from(&map).map_err(|e| kernel_error(format!("cannot share the map {name}"), e))
    }

    /// Binds a program to the sockets that are put into a socket map from now on, for as long as the map
    /// exists.
    pub fn attach_to_sockmap(&self, program: &str, map: BorrowedFd<'_>) -> Result<()> {
        self.object
            .progs_mut()
            .find(|p| p.name() == program)
            .ok_or_else(|| Error::Config(format!("the eBPF object has no program {program}")))?
            .attach_sockmap(map.as_raw_fd())
            .map_err(|e| kernel_error(format!("cannot attach {program}"), e))
    }

    /// Attaches a program to a cgroup until the link is dropped.
    pub fn attach_to_cgroup(&self, program: &str, cgroup: BorrowedFd<'_>) -> Result<Link> {
        self.object
            .progs_mut()
            .find(|p| p.name() == program)
            .ok_or_else(|| Error::Config(format!("the eBPF object has no program {program}")))?
            .attach_cgroup(cgroup.as_raw_fd())
            .map_err(|e| kernel_error(format!("cannot attach {program}"), e))
    }

    /// The name and the section of each program.
    pub fn programs(&self) -> Vec<(String, String)> {
        let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        self.object.progs().map(|program| (text(program.name()), text(program.section()))).collect()
    }

    /// Handle to a program.
    pub fn program(&self, name: &str) -> Result<Program> {
        let program = self
            .object
            .progs()
            .find(|p| p.name() == name)
            .ok_or_else(|| Error::Config(format!("the eBPF object has no program {name}")))?;
        let fd = program.as_fd().try_clone_to_owned();
        Ok(Program::new(fd.map_err(|e| Error::io("cannot duplicate a program descriptor", e))?))
    }
}
