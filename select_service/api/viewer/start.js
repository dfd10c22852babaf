// Shows the document of the service that served this page; its own origin is where try-it sends to.
SwaggerUIBundle({
  url: new URL('openapi.json', document.baseURI).href,
  dom_id: '#viewer',
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  docExpansion: 'list',
  filter: true,
  validatorUrl: null,
});
