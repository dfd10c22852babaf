"""What runs the service elsewhere: the image and the Helm chart.

`values/` are values of a chart, `rendered/` what Helm makes of them.  With Helm's own code, in
scripts/test_deploy, test_helm checks that they still agree; without it everything else is checked:
test_rendered against the code of the service, test_pods by starting what a pod would start.
"""
