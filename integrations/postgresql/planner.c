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
#include "nodes/plannodes.h"
#include "optimizer/planner.h"
#include "parser/parsetree.h"

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
		(bps_force || (uint64) RelationGetNumberOfBlocks(relation) * BLCKSZ >= (uint64) bps_min_table_megabytes << 20);
	table_close(relation, NoLock);
	return is_candidate;
}

/* A custom scan that does what a sequential scan does. */
static Plan *
CustomFrom(const SeqScan *scan)
{
	CustomScan *custom = makeNode(CustomScan);

	custom->scan = scan->scan;
	custom->scan.plan.type = T_CustomScan;
	custom->flags = CUSTOMPATH_SUPPORT_PROJECTION | CUSTOMPATH_SUPPORT_BACKWARD_SCAN;
	custom->custom_relids = bms_make_singleton((int) scan->scan.scanrelid);
	custom->methods = &bps_scan_methods;
	return &custom->scan.plan;
}

static Plan *ReplaceScans(const PlannedStmt *statement, Plan *plan);

static void
ReplaceInList(const PlannedStmt *statement, List *plans)
{
	ListCell   *cell;

	foreach(cell, plans)
		lfirst(cell) = ReplaceScans(statement, (Plan *) lfirst(cell));
}

/* Replaces the scans below a node, and the node itself, which is returned. A kind of node that is not known here keeps its own. */
static Plan *
ReplaceScans(const PlannedStmt *statement, Plan *plan)
{
	if (plan == NULL)
		return NULL;
	check_stack_depth();
	plan->lefttree = ReplaceScans(statement, plan->lefttree);
	plan->righttree = ReplaceScans(statement, plan->righttree);
	switch (nodeTag(plan))
	{
		case T_SeqScan:
			if (IsCandidate(statement, ((SeqScan *) plan)->scan.scanrelid))
				return CustomFrom((SeqScan *) plan);
			break;
		case T_Append:
			ReplaceInList(statement, ((Append *) plan)->appendplans);
			break;
		case T_MergeAppend:
			ReplaceInList(statement, ((MergeAppend *) plan)->mergeplans);
			break;
		case T_SubqueryScan:
			((SubqueryScan *) plan)->subplan = ReplaceScans(statement, ((SubqueryScan *) plan)->subplan);
			break;
		case T_CustomScan:
			ReplaceInList(statement, ((CustomScan *) plan)->custom_plans);
			break;
		default:
			break;
	}
	return plan;
}

static PlannedStmt *
PlanStatement(Query *query, const char *text, int cursor_options, ParamListInfo parameters)
{
	PlannedStmt *statement = previous_hook ?
		previous_hook(query, text, cursor_options, parameters) :
		standard_planner(query, text, cursor_options, parameters);

	if (bps_enabled && !IsolationIsSerializable())
	{
		statement->planTree = ReplaceScans(statement, statement->planTree);
		ReplaceInList(statement, statement->subplans);
	}
	return statement;
}

void
BpsInstallPlannerHook(void)
{
	previous_hook = planner_hook;
	planner_hook = PlanStatement;
}
