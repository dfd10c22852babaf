{{- define "select-service.fullname" -}}
{{- if contains "select-service" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-select-service" (.Release.Name | trunc 25 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "select-service.replicasName" -}}
{{- include "select-service.fullname" . }}-replicas
{{- end -}}

{{- define "select-service.plannerName" -}}
{{- include "select-service.fullname" . }}-planner
{{- end -}}

{{- define "select-service.accountName" -}}
{{- .Values.serviceAccount.name | default (include "select-service.fullname" .) -}}
{{- end -}}

{{- define "select-service.selector" -}}
app.kubernetes.io/name: select-service
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "select-service.plannerSelector" -}}
app.kubernetes.io/name: select-planner
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "select-service.chartLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "select-service.labels" -}}
{{ include "select-service.selector" . }}
{{ include "select-service.chartLabels" . }}
{{- end -}}

{{- define "select-service.plannerLabels" -}}
{{ include "select-service.plannerSelector" . }}
{{ include "select-service.chartLabels" . }}
{{- end -}}

{{- define "select-service.image" -}}
{{- $name := printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- if .Values.image.digest -}}
{{- $name = printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "select-service.scheme" -}}
{{- ternary "https" "http" (ne .Values.tls.secret "") -}}
{{- end -}}

{{/* host of a replica; takes (dict "root" $ "pod" name) */}}
{{- define "select-service.host" -}}
{{- printf "%s.%s.%s.svc.%s" .pod (include "select-service.replicasName" .root) .root.Release.Namespace .root.Values.clusterDomain -}}
{{- end -}}

{{/* all replicas, as a list of what `format` makes of their hosts; takes (dict "root" $ "format" text) */}}
{{- define "select-service.replicas" -}}
{{- $root := .root -}}
{{- $format := .format -}}
{{- $found := list -}}
{{- range $i := until (int $root.Values.replicas) -}}
{{- $pod := printf "%s-%d" (include "select-service.fullname" $root) $i -}}
{{- $found = append $found (printf $format (include "select-service.host" (dict "root" $root "pod" $pod))) -}}
{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{/* "yes" where a source looks for pods with the account of the pod, else nothing */}}
{{- define "select-service.findsPods" -}}
{{- range .Values.discovery.sources -}}
{{- if and (hasKey . "kubernetes") (not (hasKey .kubernetes "kubeconfig")) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{- define "select-service.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "select-service.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* how the kubelet asks a path; takes (dict "root" $ "path" text) */}}
{{- define "select-service.probe" -}}
{{- if .root.Values.tls.clientCa -}}
{{/* It has no certificate to show, so the container asks itself. */}}
exec:
  command:
    - python
    - -c
    - |
      import http.client, ssl, sys
      context = ssl.create_default_context()
      context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
      context.load_cert_chain("/etc/select-service/tls/tls.crt", "/etc/select-service/tls/tls.key")
      asked = http.client.HTTPSConnection("127.0.0.1", 8092, timeout=2, context=context)
      asked.request("GET", sys.argv[1])
      sys.exit(asked.getresponse().status != 200)
    - {{ .path }}
{{- else -}}
httpGet: {path: {{ .path | quote }}, port: http, scheme: {{ include "select-service.scheme" .root | upper }}}
{{- end -}}
{{- end -}}
