"""The declared routes, as tests go through them."""

from select_service.api.documentation import ENDPOINT_GROUPS

ROUTES = [endpoint.route for noun in ENDPOINT_GROUPS for endpoint in noun.endpoints]
BY_ID = {route.operation_id: route for route in ROUTES}


def path_of(route):
    """The path with the example of its parameter in it."""
    if route.in_path is None:
        return route.path
    return route.path.format(**{route.in_path.name: route.in_path.example})
