{{- define "kstreams-assets.labels" -}}
app.kubernetes.io/name: kstreams-assets
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kstreams-assets.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Mounts of all pods that run our commands: the volumes below. */}}
{{- define "kstreams-assets.mounts" -}}
- {name: application, mountPath: /etc/kstreams-assets, readOnly: true}
- {name: kafka, mountPath: /etc/kafka-secrets, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* The beginning of a pod's spec. Arguments: root, account. */}}
{{- define "kstreams-assets.pod" -}}
serviceAccountName: {{ .account }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
terminationGracePeriodSeconds: 60
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "kstreams-assets.securityContext" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Our container without its mounts. Arguments: root, command (a list), resources. */}}
{{- define "kstreams-assets.container" -}}
{{- $arguments := .command }}
{{- if .root.Values.persistentVolume.enabled }}
{{- $arguments = append $arguments "--warehouse=/warehouse" }}
{{- end -}}
name: kstreams-assets
image: {{ include "kstreams-assets.image" .root }}
{{- with .root.Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
args:
  {{- range $arguments }}
  - {{ toJson . }}
  {{- end }}
envFrom:
  - configMapRef: {name: {{ .root.Release.Name }}-assets}
  - secretRef: {name: {{ .root.Values.secrets.aws }}, optional: true}
resources: {{ toJson .resources }}
{{ include "kstreams-assets.securityContext" . }}
{{- end }}

{{/* Arguments: root, tmp (size of /tmp). */}}
{{- define "kstreams-assets.volumes" -}}
- name: application
  configMap: {name: {{ .root.Values.application.name }}}
- name: kafka
  secret: {secretName: {{ .root.Values.secrets.kafka }}, optional: true, defaultMode: 0440}
- name: tmp
  emptyDir: {sizeLimit: {{ .tmp }}}
{{- end }}

{{- define "kstreams-assets.warehouseMount" -}}
{{- if .Values.persistentVolume.enabled }}
- {name: warehouse, mountPath: /warehouse}
{{- end }}
{{- end }}

{{- define "kstreams-assets.warehouseVolume" -}}
{{- if .Values.persistentVolume.enabled }}
- name: warehouse
  persistentVolumeClaim: {claimName: {{ .Release.Name }}-warehouse}
{{- end }}
{{- end }}

{{/* What a Job of an operator does when it fails, or its node goes away. */}}
{{- define "kstreams-assets.once" -}}
backoffLimit: 0 # an operator judges what ended it; then delete the Job and create it again
podFailurePolicy:
  rules:
    # The node went away: the next pod continues where this one stopped.
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
{{- end }}
