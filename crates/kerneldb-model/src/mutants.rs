//! Defects that are put into copies of the engine's headers, to show that the model checker notices them.

/// One defect: `becomes` replaces `text`, which is in `file` exactly once.
pub struct Mutant {
    /// A part of the name of the compiled object.
    pub name: &'static str,
    /// The file, relative to `crates/kerneldb/bpf`.
    pub file: &'static str,
    /// The text to replace.
    pub text: &'static str,
    /// The replacement.
    pub becomes: &'static str,
}

const fn mutant(name: &'static str, file: &'static str, text: &'static str, becomes: &'static str) -> Mutant {
    Mutant { name, file, text, becomes }
}

/// Every mutant. A test checks that each of them still applies.
pub const MUTANTS: &[Mutant] = &[
    mutant(
        "clock_before_version",
        "engine/arena/auto.h",
        "ts = state->clock + 1;\n\t\tSTORE(&v->ts, ts);\n\t\tlatch_publish(state, ts);",
        "ts = state->clock + 1;\n\t\tlatch_publish(state, ts);\n\t\tSTORE(&v->ts, ts);",
    ),
    mutant("reader_ignores_clock", "engine/arena/auto.h", " || !clock_reached(state, found.ts)", ""),
    mutant(
        "reader_ignores_changes",
        "engine/arena/auto.h",
        "LOAD(&entry_at(pos.entry)->changes) != changes || ",
        "",
    ),
    mutant(
        "snapshot_ignores_changes",
        "engine/arena/auto.h",
        "if (registered && LOAD(&entry_at(pos.entry)->changes) != changes)",
        "if (0)",
    ),
    mutant(
        "auto_lock_without_compare",
        "engine/arena/auto.h",
        "__u64 word = CAS(&e->lock, 0, KDB_LOCK_AUTO);",
        "__u64 word = LOAD(&e->lock);\n\tif (!word)\n\t\tSTORE(&e->lock, KDB_LOCK_AUTO);",
    ),
    mutant(
        "auto_lock_without_second_look",
        "engine/arena/auto.h",
        "if (entry_matches(pos.entry, io, tag_of(io->hash))) {\n\t\t*out = pos.entry;",
        "if (1) {\n\t\t*out = pos.entry;",
    ),
    mutant(
        "unlink_keeps_tag",
        "engine/arena/index.h",
        "__u64 tag = ((word >> 32) + 1) << 32;",
        "__u64 tag = (word >> 32) << 32;",
    ),
    mutant(
        "insert_without_compare",
        "engine/arena/index.h",
        "return CAS(AT(__u64, pos->bucket), pos->word, (pos->word & ~0xffffffffull) | entry) == pos->word;",
        "ASTORE64(pos->bucket, (pos->word & ~0xffffffffull) | entry);\n\treturn 1;",
    ),
    mutant("unlink_leaves_middle", "engine/arena/index.h", "STORE(&entry_at(prev)->next, next);", ""),
    mutant(
        "collector_locks_without_compare",
        "engine/arena/gc.h",
        "if (CAS(&e->lock, 0, KDB_LOCK_AUTO) != 0) {",
        "if (LOAD(&e->lock) != 0) {",
    ),
    mutant(
        "registering_snapshot_ignored",
        "engine/arena/version.h",
        "if (snapshot == 1)\n\t\t\treturn ~0ull;",
        "if (snapshot == 1)\n\t\t\tcontinue;",
    ),
    mutant("snapshot_prunes_too_much", "engine/arena/version.h", "ts <= snapshot)", "ts < snapshot)"),
    mutant(
        "marker_without_second_look",
        "engine/arena/version.h",
        "if ((marker & KDB_MARKER) && LOAD(&v->ts) != marker)",
        "if (0)",
    ),
    mutant(
        "value_read_before_commit",
        "engine/arena/version.h",
        "\tif (marker & KDB_MARKER)\n\t\tts = marker_commit_ts(marker);\n\tbarrier();\n\t__u32 block = LOAD(&v->block), len = LOAD(&v->len);",
        "\t__u32 block = LOAD(&v->block), len = LOAD(&v->len);\n\tbarrier();\n\tif (marker & KDB_MARKER)\n\t\tts = marker_commit_ts(marker);",
    ),
    mutant(
        "publish_without_barrier",
        "engine/commit.h",
        "__sync_lock_test_and_set(&state->clock, ts);",
        "WRITE_ONCE(state->clock, ts);",
    ),
    mutant(
        "latch_for_all",
        "engine/commit.h",
        "return !READ_ONCE(state->commit_latch) && !__sync_val_compare_and_swap(&state->commit_latch, 0, 1);",
        "return 1;",
    ),
    mutant(
        "pop_without_compare",
        "engine/arena/alloc.h",
        "return CAS(&d->word, word, after) == word ? off : 0;",
        "STORE(&d->word, after);\n\treturn off;",
    ),
    mutant(
        "free_without_compare",
        "engine/arena/alloc.h",
        "if (CAS(&d->word, word, after) != word)\n\t\treturn 0;",
        "STORE(&d->word, after);",
    ),
    mutant(
        "partial_slab_without_bit",
        "engine/arena/alloc.h",
        "if (bitmap <= KDB_KIND_FREE)\n\t\tbitmap_set(bitmap, slab);",
        "if (bitmap == KDB_KIND_FREE)\n\t\tbitmap_set(bitmap, slab);",
    ),
    mutant(
        "slab_with_interrupts",
        "engine/arena/alloc.h",
        "bpf_local_irq_save(&flags);\n\tcpu = bpf_get_smp_processor_id();\n\tif (cpu < kdb_config.ncpus) {\n\t\tbpf_for(larger, 0, LARGER_CLASSES + 1) {\n\t\t\t__u32 other = kind + larger;\n\n\t\t\tif (other >= KDB_KINDS || (larger && other >= KDB_CLASSES))\n\t\t\t\tbreak;\n\t\t\toff = alloc_anywhere(cpu, other);\n\t\t\tif (off)\n\t\t\t\tbreak;\n\t\t}\n\t}\n\tbpf_local_irq_restore(&flags);",
        "cpu = bpf_get_smp_processor_id();\n\tif (cpu < kdb_config.ncpus) {\n\t\tbpf_for(larger, 0, LARGER_CLASSES + 1) {\n\t\t\t__u32 other = kind + larger;\n\n\t\t\tif (other >= KDB_KINDS || (larger && other >= KDB_CLASSES))\n\t\t\t\tbreak;\n\t\t\toff = alloc_anywhere(cpu, other);\n\t\t\tif (off)\n\t\t\t\tbreak;\n\t\t}\n\t}",
    ),
    mutant(
        "moved_value_without_second_look",
        "engine/arena/evacuate.h",
        "if (v->ts == ts && v->block == block && v->len == len &&\n\t\t    (slot < KDB_INLINE_VERSIONS || e->overflow == overflow)) {",
        "if (1) {",
    ),
    mutant(
        "version_dropped_without_change",
        "engine/arena/auto.h",
        "entry_at(entry)->changes++;\n\t\t\tbarrier();\n",
        "",
    ),
    mutant(
        "tombstone_dropped_with_one_change",
        "engine/arena/version.h",
        "\t\tbarrier();\n\t\te->changes++;\n\t\tversion_scan(entry, scan);\n\t}\nout:",
        "\t\tversion_scan(entry, scan);\n\t}\nout:",
    ),
    mutant(
        "reaper_ignores_operator",
        "engine/arena/reap.h",
        "if (__sync_val_compare_and_swap(&ctx->in_use, KDB_CTX_FREE, KDB_CTX_REAPER) != KDB_CTX_FREE) {",
        "if (0) {",
    ),
    mutant("reader_ignores_revocation", "engine/arena/tx.h", "if (snapshot_revoked(state, ctx))", "if (0)"),
    mutant(
        "upgrade_beside_readers",
        "engine/arena/lock.h",
        "if (readers != KDB_LOCK_READER)\n\t\t\t\treturn KDB_ERR_CONFLICT;",
        "",
    ),
    mutant(
        "owner_ignored",
        "engine/arena/lock.h",
        "if (owner)\n\t\treturn SINGLE_VERSION && ctx->state == KDB_TX_READ_ONLY ? LOCK_OWNED : KDB_ERR_CONFLICT;",
        "",
    ),
    mutant("commit_without_stamp", "engine/arena/tx.h", "STORE(&v->ts, ctx->commit_ts);", ""),
];
