/*
 * planner.c
 *	  Puts a custom scan in the place of each sequential scan of a large table, at equal cost.
 *
 * The hook runs when the paths of a table are known and nothing has been built on them, so it replaces elements of `pathlist`
 * and of `partial_pathlist`, from which Gather is made later. It changes no cost: which plan wins is decided as if the
 * extension were not there. Conditions that can change between planning and execution are tested again in the node
 * (policy.c).
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "nodes/pathnodes.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/prep.h"
#include "optimizer/restrictinfo.h"

static set_rel_pathlist_hook_type previous_hook;

/* A plan of the path that ReplacePaths made. */
static Plan *
PlanPath(PlannerInfo *root, RelOptInfo *rel, CustomPath *path, List *targets, List *clauses, List *custom_plans)
{
	CustomScan *plan = makeNode(CustomScan);

	(void) root;
	(void) custom_plans;
	plan->scan.plan.targetlist = targets;
	plan->scan.plan.qual = extract_actual_clauses(clauses, false);
	plan->scan.scanrelid = rel->relid;
	plan->flags = path->flags;
	plan->methods = &bps_scan_methods;
	return &plan->scan.plan;
}

static const CustomPathMethods path_methods = {
	.CustomName = "BedplateScan",
	.PlanCustomPath = PlanPath
};

/* Replaces the sequential scans of a list of paths, and returns those that were replaced. */
static List *
ReplacePaths(List *paths)
{
	List	   *replaced = NIL;
	ListCell   *cell;

	foreach(cell, paths)
	{
		Path	   *path = (Path *) lfirst(cell);
		CustomPath *custom;

		if (!IsA(path, Path) || path->pathtype != T_SeqScan || path->param_info != NULL)
			continue;
		custom = makeNode(CustomPath);
		custom->path = *path;
		custom->path.type = T_CustomPath;
		custom->path.pathtype = T_CustomScan;
		custom->flags = CUSTOMPATH_SUPPORT_PROJECTION | CUSTOMPATH_SUPPORT_BACKWARD_SCAN;
		custom->methods = &path_methods;
		lfirst(cell) = custom;
		replaced = lappend(replaced, path);
	}
	return replaced;
}

static bool
IsCandidate(PlannerInfo *root, RelOptInfo *rel, Index index, RangeTblEntry *entry)
{
	Relation	relation;
	bool		is_eligible;

	if (!bps_enabled || entry->rtekind != RTE_RELATION || entry->inh || entry->tablesample != NULL)
		return false;
	if (entry->relkind != RELKIND_RELATION && entry->relkind != RELKIND_MATVIEW)
		return false;
	if (!bps_force && (uint64) rel->pages * BLCKSZ < (uint64) bps_min_table_megabytes << 20)
		return false;
	/* Rows that are changed or locked, and rows that EvalPlanQual fetches again, need their buffers. */
	if (bms_is_member(index, root->all_result_relids) || get_plan_rowmark(root->rowMarks, index) != NULL)
		return false;
	if (IsolationIsSerializable())
		return false;
	/* The planner holds a lock. */
	relation = table_open(entry->relid, NoLock);
	is_eligible = BpsRelationIsEligible(relation);
	table_close(relation, NoLock);
	return is_eligible;
}

static void
SetRelPathlist(PlannerInfo *root, RelOptInfo *rel, Index index, RangeTblEntry *entry)
{
	List	   *replaced;

	if (previous_hook)
		previous_hook(root, rel, index, entry);
	if (!IsCandidate(root, rel, index, entry))
		return;
	replaced = ReplacePaths(rel->pathlist);

	/*
	 * A part of an Append may need a parameterized path because another part has one, and the server makes such paths of sequential
	 * scans, but not of custom ones. So the sequential scan stays behind the custom one. Of two paths of equal cost the first wins.
	 */
	if (rel->reloptkind == RELOPT_OTHER_MEMBER_REL)
		rel->pathlist = list_concat(rel->pathlist, replaced);
	(void) ReplacePaths(rel->partial_pathlist);
}

void
BpsInstallPlannerHook(void)
{
	previous_hook = set_rel_pathlist_hook;
	set_rel_pathlist_hook = SetRelPathlist;
}
