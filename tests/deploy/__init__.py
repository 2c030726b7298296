"""What is deployed: images, compose, dashboards, balancer, Kubernetes."""
