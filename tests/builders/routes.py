"""The declared routes in a form for tests."""

from select_service.api.documentation import ENDPOINT_GROUPS

ROUTES = [endpoint.route for noun in ENDPOINT_GROUPS for endpoint in noun.endpoints]
BY_ID = {route.operation_id: route for route in ROUTES}


def path_of(route):
    """Return the path with the example of the parameter inserted."""
    if route.in_path is None:
        return route.path
    return route.path.format(**{route.in_path.name: route.in_path.example})
