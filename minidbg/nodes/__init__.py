"""What a backend computes node by node, beside eager: a row for each.

``node_rows`` asks children for rows and gives them in the graph's order; ``child`` makes them.
"""

from minidbg.nodes.row import COLUMNS as COLUMNS
from minidbg.nodes.row import Row as Row
from minidbg.nodes.row import Status as Status
from minidbg.nodes.row import TableMode as TableMode
from minidbg.nodes.walk import case_of_node as case_of_node
from minidbg.nodes.walk import node_rows as node_rows
