//! Tests of limits and missing resources: the result must be an error that says what is missing, or the code must
//! work in ring 3. Each test forks, and the child builds its own ring 0.

mod common;

use bedplate_ring0::{Error, Process, is_ring0};

/// Runs `child` in a forked process. Asserts that it returns `Ok`.
fn in_child(child: impl FnOnce() -> Result<(), String>) {
    // SAFETY: the child runs only `child`, and ends here.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        let status = match result {
            Ok(Ok(())) => 0,
            Ok(Err(error)) => {
                // The test harness does not show output captured in the child, so the child writes to standard error.
                let _ = rustix::io::write(std::io::stderr(), format!("{error}\n").as_bytes());
                1
            }
            Err(_) => 2,
        };
        // SAFETY: no conditions.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: writes to the variable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
}

fn check(condition: bool, what: impl std::fmt::Display) -> Result<(), String> {
    if condition { Ok(()) } else { Err(what.to_string()) }
}

fn map(place: u64, bytes: usize, protection: i32, more: i32) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | more;
    // SAFETY: new memory.
    let at = unsafe { libc::mmap(place as *mut libc::c_void, bytes, protection, flags, -1, 0) };
    assert_eq!(at as u64, place);
    at.cast()
}

#[test]
fn without_the_device_the_error_says_so() {
    if !common::enabled() {
        return;
    }
    in_child(|| {
        // SAFETY: changes only what this child sees: it gets a mount namespace in which the device is hidden.
        unsafe {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                return Err("no mount namespace".into());
            }
            libc::mount(
                c"none".as_ptr(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            );
            let hidden =
                libc::mount(c"empty".as_ptr(), c"/dev".as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null());
            check(hidden == 0, "/dev can be hidden")?;
        }
        match Process::builder().build() {
            Err(error @ Error::Open { .. }) => check(error.to_string().contains("kvm_amd"), error),
            other => Err(format!("{other:?}")),
        }
    });
}

#[test]
fn without_permission_the_error_says_so() {
    if !common::enabled() {
        return;
    }
    in_child(|| {
        // SAFETY: no conditions.
        unsafe {
            libc::chmod(c"/dev/kvm".as_ptr(), 0o600);
            check(libc::setuid(65534) == 0, "root")?;
        }
        match Process::builder().build() {
            Err(error @ Error::Open { .. }) => check(error.to_string().contains("group"), error),
            other => Err(format!("{other:?}")),
        }
    });
}

#[test]
fn more_memory_than_windows_is_an_error_or_native() {
    if !common::enabled() {
        return;
    }
    in_child(|| {
        let windows = 6;
        for index in 0..8 {
            map(0x2100_0000_0000 + (index << 31), 4096, libc::PROT_READ, 0);
        }
        match Process::builder().max_windows(windows).build() {
            Err(Error::AddressSpace { needed, available }) => {
                check(needed > available && available <= windows, format!("{needed} {available}"))
            }
            other => Err(format!("{other:?}")),
        }
    });
    in_child(|| {
        let process = Process::builder().max_windows(40).build().map_err(|error| error.to_string())?;
        // There are more addresses than windows, and all are mapped. Those without a window are reached in ring 3.
        let places: Vec<_> = (0..60)
            .map(|index| map(0x2100_0000_0000 + (index << 31), 4096, libc::PROT_READ | libc::PROT_WRITE, 0))
            .collect();
        let mut native = 0;
        for (index, place) in (0u8..).zip(&places) {
            let inside = process.run(|_| {
                // SAFETY: memory that only this test uses.
                unsafe { place.write_volatile(index) };
                is_ring0()
            });
            native += u32::from(!inside.map_err(|error| error.to_string())?);
        }
        // SAFETY: as above.
        let kept = (0u8..).zip(&places).all(|(index, place)| unsafe { place.read_volatile() } == index);
        check(kept, "all writes arrived")?;
        check(native > 0, "some had no window")?;
        // Windows of unmapped memory are reclaimed, so other memory can use them.
        // SAFETY: no code uses them any more.
        places.iter().for_each(|place| unsafe {
            libc::munmap(place.cast(), 4096);
        });
        let more: Vec<_> = (0..20).map(|index| map(0x2200_0000_0000 + (index << 31), 4096, 3, 0)).collect();
        for place in more {
            let inside = process.run(|_| {
                // SAFETY: memory that only this test uses.
                unsafe { place.write_volatile(1) };
                is_ring0()
            });
            check(inside.map_err(|error| error.to_string())?, "a window was reclaimed")?;
        }
        Ok(())
    });
}

#[test]
fn reservations_take_no_windows_until_they_are_used() {
    if !common::enabled() {
        return;
    }
    in_child(|| {
        let reserved = map(0x2300_0000_0000, 1 << 40, libc::PROT_NONE, libc::MAP_NORESERVE);
        let process = Process::builder().build().map_err(|error| error.to_string())?;
        let (capacity, free) = process.window_capacity();
        check(capacity - free < 64, format!("{} windows in use", capacity - free))?;
        let inside = process.run(|_| {
            let place = reserved.wrapping_add(777 << 30);
            // SAFETY: memory that only this test uses, accessible from now on.
            unsafe {
                libc::mprotect(place.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE);
                place.write_volatile(1);
            }
            is_ring0()
        });
        check(inside.map_err(|error| error.to_string())?, "a part that became accessible got its window")
    });
}

#[test]
fn without_gigabyte_pages_it_works_too() {
    if !common::enabled() {
        return;
    }
    in_child(|| {
        let process = Process::builder().small_pages().build().map_err(|error| error.to_string())?;
        let place = map(0x2400_0000_0000, 4 << 20, libc::PROT_READ | libc::PROT_WRITE, 0);
        let seen = process.run(|_| {
            let list: Vec<u64> = (0..100_000).collect();
            // SAFETY: memory that only this test uses.
            unsafe { place.add(3 << 20).write_volatile(5) };
            (list.iter().sum::<u64>(), is_ring0())
        });
        // SAFETY: as above.
        check(unsafe { place.add(3 << 20).read() } == 5, "the write arrived")?;
        check(seen.map_err(|error| error.to_string())? == (4_999_950_000, true), "the sum, in ring 0")
    });
}

#[test]
fn more_threads_than_processors_is_an_error() {
    if !common::enabled() {
        return;
    }
    in_child(|| {
        let process = Process::builder().max_cpus(2).build().map_err(|error| error.to_string())?;
        let barrier = std::sync::Barrier::new(4);
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let entered = process.enter().map(|_| ());
                        barrier.wait();
                        entered
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let refused = results.iter().filter(|r| matches!(r, Err(Error::TooManyThreads { limit: 2 }))).count();
        check(refused == 2, format!("{results:?}"))?;
        check(process.run(|_| is_ring0()).map_err(|error| error.to_string())?, "given back, they can be had")
    });
}

/// Sets a seccomp filter that refuses every ioctl.
fn forbid_ioctl() -> Result<(), String> {
    let statement =
        |code, jump_true, jump_false, k| libc::sock_filter { code, jt: jump_true, jf: jump_false, k };
    let mut filter = [
        statement(0x20, 0, 0, 0),                      // load the call's number
        statement(0x15, 0, 1, libc::SYS_ioctl as u32), // is it ioctl?
        statement(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32), // refuse
        statement(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the filter.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program)
    };
    check(result == 0, "a filter can be set")
}

#[test]
fn a_filter_that_forbids_ioctl_is_an_error_or_native() {
    if !common::enabled() {
        return;
    }
    in_child(|| {
        forbid_ioctl()?;
        match Process::builder().build() {
            Err(error) => check(error.errno() == libc::EPERM || error.to_string().contains("12"), error),
            Ok(_) => Err("built without ioctl".into()),
        }
    });
    in_child(|| {
        let process = Process::builder().build().map_err(|error| error.to_string())?;
        check(process.run(|_| is_ring0()).map_err(|error| error.to_string())?, "in ring 0 before")?;
        forbid_ioctl()?;
        match process.run(|_| is_ring0()) {
            Err(error) => check(error.to_string().contains("seccomp"), error),
            Ok(inside) => Err(format!("entered: {inside}")),
        }
    });
}
