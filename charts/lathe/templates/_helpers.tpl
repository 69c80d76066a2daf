{{- define "lathe.labels" -}}
app.kubernetes.io/name: lathe
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "lathe.podSecurity" -}}
runAsNonRoot: true
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "lathe.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "lathe.passwordSecret" -}}
{{ .Values.postgres.passwordSecretName | default "lathe-postgres" }}
{{- end }}

{{- /* Names of the Secrets with model keys, as JSON: of the values' model, of the default class, of other classes. */}}
{{- define "lathe.modelSecrets" -}}
{{- $names := list }}
{{- with .Values.model.secretName }}{{ $names = append $names . }}{{ end }}
{{- range .Values.class.spec.models }}
{{- with .apiKeySecret }}{{ $names = append $names .name }}{{ end }}
{{- end }}
{{- concat $names .Values.model.otherSecretNames | uniq | toJson }}
{{- end }}

{{- define "lathe.databaseEnv" -}}
{{- if .Values.postgres.embedded -}}
# By the Service's address, which the kubelet puts into the environment: clusters without DNS can do this too.
- name: LATHE_DATABASE_PASSWORD
  valueFrom: { secretKeyRef: { name: {{ include "lathe.passwordSecret" . }}, key: password } }
- name: LATHE_DATABASE_URL
  value: postgres://lathe:$(LATHE_DATABASE_PASSWORD)@$(LATHE_POSTGRES_SERVICE_HOST):5432/postgres
{{- else }}
- name: LATHE_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "postgres.embedded is false: postgres.url.secretName must name the Secret that holds the URL" .Values.postgres.url.secretName }}
      key: {{ .Values.postgres.url.secretKey }}
{{- end }}
- name: LATHE_LOG_LEVEL
  value: {{ .Values.logLevel }}
{{- end }}

{{- define "lathe.probes" -}}
livenessProbe:
  httpGet: { path: /healthz, port: health }
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: { path: /readyz, port: health }
  periodSeconds: 2
  timeoutSeconds: 5
{{- end }}
