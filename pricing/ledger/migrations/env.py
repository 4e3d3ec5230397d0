"""What Alembic runs for each command; the connection comes from `pricing.ledger.migrations.upgrade`."""

from alembic import context

from pricing.ledger.store.tables import VERSION_TABLE, metadata

# A table of versions with a name of our own: the ledger may live in a database that others migrate too.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
with context.begin_transaction():
    context.run_migrations()
