"""Tests of deployments of the service: the image and the Helm chart.

`values/` has values of a chart, `rendered/` the output of Helm for these values. In
scripts/test_deploy, test_helm checks with Helm's own code that both still agree. Without Helm
everything else is checked: test_rendered against the code of the service, test_pods by starting the
commands of a pod.
"""
