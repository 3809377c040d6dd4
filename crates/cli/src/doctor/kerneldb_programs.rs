//! Probes of kerneldb that load, and where needed run, an eBPF program of a few instructions.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::btf::{Btf, types};
use libbpf_rs::libbpf_sys as sys;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::Check;
use super::bpf::{self, Refused};
use super::kerneldb::NOT_ALLOWED;

const KINDS: (&str, &str) = ("program-types", "program types");
const JIT: (&str, &str) = ("jit", "just-in-time compiler");
const ISA: (&str, &str) = ("isa-v4", "instruction set v4");
const ITER: (&str, &str) = ("bpf-iter-num", "bounded loops (bpf_iter_num)");
const ARENA: (&str, &str) = ("arena", "arena maps");
const IRQ: (&str, &str) = ("irq-save", "interrupt-safe locks (bpf_local_irq_save)");
const RES_LOCK: (&str, &str) = ("res-spin-lock", "resilient spin locks (bpf_res_spin_lock)");
const RING: (&str, &str) = ("ring-buffer", "ring buffers");
const SOCKMAP: (&str, &str) = ("sockmap", "maps of sockets");

/// All of this module's probes; bpf(2) must be allowed. `arenas_required`: there is no database without arenas.
pub fn probe(btf: Option<&Btf<'_>>, arenas_required: bool) -> Vec<Check> {
    vec![
        kinds().required_if(arenas_required),
        jit(),
        instruction_set().required_if(arenas_required),
        bounded_loops(btf).required_if(arenas_required),
        arena().required_if(arenas_required),
        irq_save(btf).required_if(arenas_required),
        res_spin_lock(btf),
        ring_buffer().required(),
        sockmap().required_if(arenas_required),
    ]
}

/// The same checks without answers.
pub fn unknown() -> Vec<Check> {
    let required = [KINDS, JIT, ISA, ITER, ARENA, IRQ, RING, SOCKMAP];
    [KINDS, JIT, ISA, ITER, ARENA, IRQ, RES_LOCK, RING, SOCKMAP]
        .into_iter()
        .map(|(id, subject)| {
            let check = Check::unknown(id, subject, NOT_ALLOWED);
            if required.contains(&(id, subject)) { check.required() } else { check }
        })
        .collect()
}

fn kinds() -> Check {
    let wanted = [
        (sys::BPF_PROG_TYPE_RAW_TRACEPOINT, "raw_tracepoint"),
        (sys::BPF_PROG_TYPE_SCHED_CLS, "tc"),
        (sys::BPF_PROG_TYPE_SK_SKB, "sk_skb"),
        (sys::BPF_PROG_TYPE_SK_MSG, "sk_msg"),
        (sys::BPF_PROG_TYPE_SOCK_OPS, "sock_ops"),
    ];
    let noop = [bpf::mov_imm(0, 1), bpf::exit()];
    let refused: Vec<String> = wanted
        .iter()
        .filter_map(|(kind, name)| Some(format!("{name}: {}", bpf::load(*kind, &noop).err()?)))
        .collect();
    if refused.is_empty() {
        let names: Vec<_> = wanted.iter().map(|(_, name)| *name).collect();
        Check::yes(KINDS.0, KINDS.1, format!("loaded {}", names.join(", ")))
    } else {
        Check::no(KINDS.0, KINDS.1, refused.join("; ")).advice(
            "use a kernel with CONFIG_BPF_STREAM_PARSER=y, CONFIG_CGROUP_BPF=y and CONFIG_BPF_EVENTS=y, and \
             CAP_BPF with CAP_NET_ADMIN and CAP_PERFMON",
        )
    }
}

fn jit() -> Check {
    let noop = [bpf::mov_imm(0, 0), bpf::exit()];
    let loaded = bpf::load(sys::BPF_PROG_TYPE_SCHED_CLS, &noop);
    let size = loaded.map_err(|e| e.to_string()).and_then(|p| {
        bpf::compiled_bytes(&p).map_err(|e| format!("what became of the program cannot be read: {e}"))
    });
    match size {
        Ok(0) => Check::no(JIT.0, JIT.1, "programs are interpreted: an order of magnitude slower")
            .advice("sysctl net.core.bpf_jit_enable=1")
            .required(),
        Ok(_) => Check::yes(JIT.0, JIT.1, "programs are compiled to machine code").required(),
        Err(why) => Check::unknown(JIT.0, JIT.1, why),
    }
}

/// Checks a sign-extending move, which is new in v4, the instruction set that the programs are compiled for.
fn instruction_set() -> Check {
    let movsx = bpf::insn(0xbf, 0, 1, 8, 0);
    let insns = [bpf::mov_imm(1, 255), movsx, bpf::exit()];
    let answer = bpf::load(sys::BPF_PROG_TYPE_SCHED_CLS, &insns)
        .map_err(|e| e.to_string())
        .and_then(|prog| bpf::run_on_packet(&prog).map_err(|e| e.to_string()));
    match answer {
        Ok(result) if result == u32::MAX => Check::yes(ISA.0, ISA.1, "a sign-extending move ran"),
        Ok(other) => Check::no(ISA.0, ISA.1, format!("a sign-extending move gave {other:#x}"))
            .advice("update the kernel: its compiler of eBPF is wrong"),
        Err(why) => Check::no(ISA.0, ISA.1, why).advice("use Linux 6.6 or newer"),
    }
}

/// The call of a kernel function, if this kernel has it.
fn kfunc(btf: Option<&Btf<'_>>, name: &str) -> Result<sys::bpf_insn, String> {
    let btf = btf.ok_or("without type information kernel functions cannot be called")?;
    // A structure may have the same name, as with bpf_res_spin_lock, so the kind matters too.
    let is_function = |id: &u32| {
        let function = btf.type_by_id::<types::Func<'_>>((*id).into());
        function.is_some_and(|f| f.name().is_some_and(|n| n == name))
    };
    let id = (1..btf.len() as u32).find(is_function).ok_or_else(|| format!("this kernel has no {name}"))?;
    Ok(bpf::call_kfunc(id as i32))
}

fn load_only(insns: &[sys::bpf_insn]) -> Result<OwnedFd, String> {
    bpf::load(sys::BPF_PROG_TYPE_SCHED_CLS, insns).map_err(|refused: Refused| refused.to_string())
}

fn bounded_loops(btf: Option<&Btf<'_>>) -> Check {
    let attempt = || {
        let (new, destroy) = (kfunc(btf, "bpf_iter_num_new")?, kfunc(btf, "bpf_iter_num_destroy")?);
        let mut insns = bpf::stack_address(1, -8).to_vec();
        insns.extend([bpf::mov_imm(2, 0), bpf::mov_imm(3, 1), new]);
        insns.extend(bpf::stack_address(1, -8));
        insns.extend([destroy, bpf::mov_imm(0, 0), bpf::exit()]);
        load_only(&insns)
    };
    match attempt() {
        Ok(_) => Check::yes(ITER.0, ITER.1, "a loop was accepted"),
        Err(why) => Check::no(ITER.0, ITER.1, why).advice("use Linux 6.4 or newer"),
    }
}

/// Lets a program write into an arena, and reads the word from this process's mapping.
fn arena() -> Check {
    const PAGE: usize = 4096;
    const PATTERN: i32 = 0x5ca1_ab1e;
    let attempt = || -> Result<(), String> {
        let text = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
        let map = bpf::create_map(sys::BPF_MAP_TYPE_ARENA, 0, 0, 1, sys::BPF_F_MMAPABLE)
            .map_err(text("creating one"))?;
        // SAFETY: a new mapping at an address of the kernel's choice; it is unmapped below, and nothing
        // else refers to it.
        let memory = unsafe {
            mmap(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &map, 0)
        }
        .map_err(|e| format!("mapping it: {e}"))?;
        let word = memory.cast::<u64>();
        // SAFETY: the page is mapped writable. The write allocates it.
        unsafe { word.write_volatile(1) };
        let run = || -> Result<u64, String> {
            let address = memory as u64;
            let mut insns = bpf::map_address(2, map.as_fd()).to_vec();
            insns.extend([
                bpf::insn(0x18, 1, 0, 0, address as i32),
                bpf::insn(0, 0, 0, 0, (address >> 32) as i32),
                // The cast from the arena's address space to the kernel's.
                bpf::insn(0xbf, 1, 1, sys::BPF_ADDR_SPACE_CAST as i16, 1),
                bpf::store(1, 0, PATTERN),
                bpf::mov_imm(0, 0),
                bpf::exit(),
            ]);
            let prog = load_only(&insns)?;
            bpf::run_on_packet(&prog).map_err(text("running a program on it"))?;
            // SAFETY: still mapped; the program has finished.
            Ok(unsafe { word.read_volatile() })
        };
        let seen = run();
        // SAFETY: the mapping made above, whose pointers are not used any more.
        unsafe { munmap(memory, PAGE) }.map_err(|e| format!("unmapping it: {e}"))?;
        match seen? {
            value if value == PATTERN as u64 => Ok(()),
            value => Err(format!("a program's write was not seen in the mapping ({value:#x})")),
        }
    };
    match attempt() {
        Ok(()) => Check::yes(ARENA.0, ARENA.1, "memory was shared between a program and this process"),
        Err(why) => Check::no(ARENA.0, ARENA.1, why).advice("use Linux 6.9 or newer with CONFIG_BPF_JIT=y"),
    }
}

fn irq_save(btf: Option<&Btf<'_>>) -> Check {
    let attempt = || {
        let (save, restore) = (kfunc(btf, "bpf_local_irq_save")?, kfunc(btf, "bpf_local_irq_restore")?);
        let mut insns = bpf::stack_address(1, -8).to_vec();
        insns.push(save);
        insns.extend(bpf::stack_address(1, -8));
        insns.extend([restore, bpf::mov_imm(0, 0), bpf::exit()]);
        load_only(&insns)
    };
    match attempt() {
        Ok(_) => Check::yes(IRQ.0, IRQ.1, "a program that holds off interrupts was accepted"),
        Err(why) => Check::no(IRQ.0, IRQ.1, why).advice("use Linux 6.14 or newer"),
    }
}

fn res_spin_lock(btf: Option<&Btf<'_>>) -> Check {
    let attempt = || {
        let (lock, unlock) = (kfunc(btf, "bpf_res_spin_lock")?, kfunc(btf, "bpf_res_spin_unlock")?);
        let map = bpf::create_lock_map().map_err(|e| format!("a map of locks: {e}"))?;
        let mut insns = vec![bpf::store(10, -8, 0)];
        insns.extend(bpf::map_address(1, map.as_fd()));
        insns.extend(bpf::stack_address(2, -8));
        insns.extend([
            bpf::call(sys::BPF_FUNC_map_lookup_elem as i32),
            bpf::insn(0x15, 0, 0, 6, 0), // no element: to the end
            bpf::mov(6, 0),
            bpf::mov(1, 0),
            lock,
            bpf::insn(0x55, 0, 0, 2, 0), // not locked: to the end
            bpf::mov(1, 6),
            unlock,
            bpf::mov_imm(0, 0),
            bpf::exit(),
        ]);
        load_only(&insns)
    };
    match attempt() {
        Ok(_) => Check::yes(RES_LOCK.0, RES_LOCK.1, "a program that takes one was accepted"),
        Err(why) => Check::no(RES_LOCK.0, RES_LOCK.1, why)
            .advice("use Linux 6.15 or newer; without it plain spin locks are used where locks may not nest"),
    }
}

fn ring_buffer() -> Check {
    match bpf::create_map(sys::BPF_MAP_TYPE_RINGBUF, 0, 0, 4096, 0) {
        Ok(_) => Check::yes(RING.0, RING.1, "one could be created"),
        Err(error) => Check::no(RING.0, RING.1, error.to_string()).advice("use Linux 5.8 or newer"),
    }
}

/// Lets the kernel answer a connection over the loopback interface with the bytes that the client sent.
fn sockmap() -> Check {
    const REQUEST: &[u8; 4] = b"ping";
    let attempt = || -> Result<(), String> {
        let text = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
        let map = bpf::create_map(sys::BPF_MAP_TYPE_SOCKHASH, 8, 8, 1, 0).map_err(text("creating one"))?;
        // return bpf_sk_redirect_hash(skb, map, &key, 0)
        let mut insns = vec![bpf::store(10, -8, 0)];
        insns.extend(bpf::map_address(2, map.as_fd()));
        insns.extend(bpf::stack_address(3, -8));
        insns.extend([bpf::mov_imm(4, 0), bpf::call(sys::BPF_FUNC_sk_redirect_hash as i32), bpf::exit()]);
        let verdict = bpf::load(sys::BPF_PROG_TYPE_SK_SKB, &insns).map_err(|e| e.to_string())?;
        const SK_PASS: i32 = 1;
        let pass = [bpf::mov_imm(0, SK_PASS), bpf::exit()];
        let message = bpf::load(sys::BPF_PROG_TYPE_SK_MSG, &pass).map_err(|e| e.to_string())?;
        bpf::attach_to_map(&verdict, &map, sys::BPF_SK_SKB_VERDICT).map_err(text("attaching a verdict"))?;
        bpf::attach_to_map(&message, &map, sys::BPF_SK_MSG_VERDICT).map_err(text("attaching to sends"))?;

        let tcp = |e: io::Error| format!("a loopback connection: {e}");
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(tcp)?;
        let mut client = TcpStream::connect(listener.local_addr().map_err(tcp)?).map_err(tcp)?;
        let (server, _) = listener.accept().map_err(tcp)?;
        bpf::update_map(map.as_fd(), 0, server.as_raw_fd() as u64).map_err(text("adding a socket"))?;
        client.set_read_timeout(Some(Duration::from_secs(2))).map_err(tcp)?;
        client.write_all(REQUEST).map_err(tcp)?;
        let mut reply = [0; REQUEST.len()];
        client.read_exact(&mut reply).map_err(text("the kernel did not answer a request"))?;
        if reply == *REQUEST { Ok(()) } else { Err(format!("the kernel answered {reply:?}")) }
    };
    match attempt() {
        Ok(()) => Check::yes(SOCKMAP.0, SOCKMAP.1, "a request over loopback was answered in the kernel"),
        Err(why) => Check::no(SOCKMAP.0, SOCKMAP.1, why)
            .advice("use Linux 5.18 or newer with CONFIG_BPF_STREAM_PARSER=y and CONFIG_INET=y"),
    }
}
