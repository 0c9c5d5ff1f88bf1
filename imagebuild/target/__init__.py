"""What people write down (targets, sites, policies, workspaces), and the lock that it resolves to."""
