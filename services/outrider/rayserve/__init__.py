"""Outrider under Ray Serve: deployments, the application's builder, autoscaling."""
