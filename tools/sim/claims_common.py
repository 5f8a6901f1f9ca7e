"""What the claims of all papers share; used by tools/sim/claims_*.py.

A claim's function gets the simulator and returns (kind, cell) or (kind, cell, details): the text of
the table's cell, at most 200 characters, and what is listed below the table.
"""
import os
import re

DECODE = {'prompt_tokens': 16, 'gen_tokens': 32}
DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'docs')
MEASURED = 'measured (tiny-moe)'


def present(sim, names):
    return [name for name in names if sim.has(name)]


def absent(sim, names):
    """Why baselines are not in the row: a list with one detail, or none."""
    gone = [name for name in names if not sim.has(name)]
    return [f'{", ".join(gone)} n/a: not simulated (docs/policies.md)'] if gone else []


def tpot(row):
    return row['tpot_ms']


def percent(share):
    return f'{100 * share:+.0f} %'


def fixed(kind, text):
    def ours(sim):
        del sim
        return kind, text
    return ours


def document_cells(name, row):
    """The cells of a document's table row that begins with these words."""
    with open(os.path.join(DOCS, name), encoding='utf-8') as file:
        found = re.search(r'^\| ' + re.escape(row) + r' \|(.*)\|$', file.read(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f'docs/{name} has no row {row}')
    return [cell.strip() for cell in found.group(1).split('|')]


def decision_us(policy):
    """Measured: 64 experts, 16 tokens (docs/policies.md, bench_policies)."""
    return float(document_cells('policies.md', policy)[1])


def busy_ms(row, what):
    return row['tpot_ms'] * row[what + '_busy_share']
