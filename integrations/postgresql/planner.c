/*
 * planner.c
 *	  Puts a custom scan in the place of each sequential scan of a large table in a finished plan.
 *
 * The server plans as if the extension were not there, so the extension changes no choice of it: neither which plan wins,
 * nor what its nodes compute. A custom path would: the server lets the scan of a table pass whole tuples on where that saves a
 * projection, but never the plan of a custom path, which costs 20 ns for each tuple.
 *
 * Conditions that can change between planning and execution are tested again in the node (policy.c).
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "bedplate_scan.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/plannodes.h"
#include "optimizer/planner.h"
#include "parser/parsetree.h"

#define BLOCKS_PER_MEGABYTE	((1 << 20) / BLCKSZ)

static planner_hook_type previous_hook;

/* Whether rows of a table may be changed or locked, or fetched again by EvalPlanQual: they need their buffers. */
static bool
NeedsBuffers(const PlannedStmt *statement, Index index)
{
	ListCell   *cell;

	if (list_member_int(statement->resultRelations, (int) index))
		return true;
	foreach(cell, statement->rowMarks)
	{
		if (lfirst_node(PlanRowMark, cell)->rti == index)
			return true;
	}
	return false;
}

static BlockNumber
BlocksOf(Relation relation)
{
	return RELKIND_HAS_STORAGE(relation->rd_rel->relkind) ? RelationGetNumberOfBlocks(relation) : 0;
}

/* What the walks over a plan share. */
typedef struct Walk
{
	const PlannedStmt *statement;
	uint64		blocks;			/* of the tables that are appended to each other here, partitions for instance; 0 if there are none */
} Walk;

/* Calls a function with each place below a node that has a plan. A kind of node that is not known here keeps its own. */
static void
VisitChildren(Plan *plan, void (*visit) (Plan **place, Walk *walk), Walk *walk)
{
	List	   *children = NIL;
	ListCell   *cell;

	if (plan->lefttree)
		visit(&plan->lefttree, walk);
	if (plan->righttree)
		visit(&plan->righttree, walk);
	switch (nodeTag(plan))
	{
		case T_Append:
			children = ((Append *) plan)->appendplans;
			break;
		case T_MergeAppend:
			children = ((MergeAppend *) plan)->mergeplans;
			break;
		case T_SubqueryScan:
			visit(&((SubqueryScan *) plan)->subplan, walk);
			break;
		case T_CustomScan:
			children = ((CustomScan *) plan)->custom_plans;
			break;
		default:
			break;
	}
	foreach(cell, children)
		visit((Plan **) &lfirst(cell), walk);
}

/* Adds the blocks of the tables that are scanned here and below. */
static void
AddBlocks(Plan **place, Walk *walk)
{
	check_stack_depth();
	if (IsA(*place, SeqScan))
	{
		RangeTblEntry *entry = rt_fetch(((SeqScan *) *place)->scan.scanrelid, walk->statement->rtable);
		Relation	relation = table_open(entry->relid, NoLock);

		walk->blocks += BlocksOf(relation);
		table_close(relation, NoLock);
	}
	VisitChildren(*place, AddBlocks, walk);
}

static bool
IsCandidate(const PlannedStmt *statement, Index index)
{
	RangeTblEntry *entry = rt_fetch(index, statement->rtable);
	Relation	relation;
	bool		is_candidate;

	if (entry->rtekind != RTE_RELATION || NeedsBuffers(statement, index))
		return false;
	/* The planner holds a lock. */
	relation = table_open(entry->relid, NoLock);
	is_candidate = BpsRelationIsEligible(relation) &&
		(bps_force || (uint64) BlocksOf(relation) * BLCKSZ >= (uint64) bps_min_table_megabytes << 20);
	table_close(relation, NoLock);
	return is_candidate;
}

/* A custom scan that does what a sequential scan does. `blocks` are those of the tables that it is appended to. */
static Plan *
CustomFrom(const SeqScan *scan, uint64 blocks)
{
	CustomScan *custom = makeNode(CustomScan);

	custom->scan = scan->scan;
	custom->scan.plan.type = T_CustomScan;
	custom->flags = CUSTOMPATH_SUPPORT_PROJECTION | CUSTOMPATH_SUPPORT_BACKWARD_SCAN;
	custom->custom_private = list_make1(makeInteger((int) Min(blocks / BLOCKS_PER_MEGABYTE, (uint64) INT_MAX)));
	custom->custom_relids = bms_make_singleton((int) scan->scan.scanrelid);
	custom->methods = &bps_scan_methods;
	return &custom->scan.plan;
}

/* The bytes of the tables that a scan's is appended to; 0 if there are none. */
double
BpsAppendedBytes(const CustomScan *custom)
{
	return (double) intVal(linitial(custom->custom_private)) * BLOCKS_PER_MEGABYTE * BLCKSZ;
}

/* Replaces the scans here and below. */
static void
ReplaceScans(Plan **place, Walk *walk)
{
	Plan	   *plan = *place;
	Walk		below = *walk;

	check_stack_depth();
	if (IsA(plan, SeqScan) && IsCandidate(walk->statement, ((SeqScan *) plan)->scan.scanrelid))
		*place = plan = CustomFrom((SeqScan *) plan, walk->blocks);
	if (IsA(plan, Append) || IsA(plan, MergeAppend))
	{
		below.blocks = 0;
		VisitChildren(plan, AddBlocks, &below);
		below.blocks = Max(below.blocks, walk->blocks);
	}
	VisitChildren(plan, ReplaceScans, &below);
}

static PlannedStmt *
PlanStatement(Query *query, const char *text, int cursor_options, ParamListInfo parameters)
{
	PlannedStmt *statement = previous_hook ?
		previous_hook(query, text, cursor_options, parameters) :
		standard_planner(query, text, cursor_options, parameters);

	if (bps_enabled && !IsolationIsSerializable())
	{
		Walk		walk = {statement, 0};
		ListCell   *cell;

		ReplaceScans(&statement->planTree, &walk);
		foreach(cell, statement->subplans)
		{
			/* A subplan that was found to be of no use is none. */
			if (lfirst(cell) != NULL)
				ReplaceScans((Plan **) &lfirst(cell), &walk);
		}
	}
	return statement;
}

void
BpsInstallPlannerHook(void)
{
	previous_hook = planner_hook;
	planner_hook = PlanStatement;
}
