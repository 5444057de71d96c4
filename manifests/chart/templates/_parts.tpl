{{/* The label that selects the pods of one part; `kubectl covey` finds the Services by it. */}}
{{- define "covey.selector" -}}
app.kubernetes.io/name: covey-{{ . }}
{{- end }}

{{/* Labels of every object of one part. */}}
{{- define "covey.labels" -}}
{{ include "covey.selector" . }}
app.kubernetes.io/part-of: covey
{{- end }}

{{- define "covey.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What the pod specs of all parts share. */}}
{{- define "covey.pod" -}}
enableServiceLinks: false
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Nobody but the image's user, nothing but its folders. A kept user id has no name in the image: kopf asks for one. */}}
{{- define "covey.container" -}}
image: {{ include "covey.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "covey.environment" -}}
- {name: HOME, value: /tmp}
- {name: USER, value: covey}
{{- end }}

{{- define "covey.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Who the pod is, and whom to believe: a token for the fleet API only, and the fleet's authority. A pod waits for the
     ConfigMap, which the controller writes when it first leads. */}}
{{- define "covey.identity" -}}
- name: identity
  projected:
    defaultMode: 0440
    sources:
    - serviceAccountToken: {audience: covey-fleet, expirationSeconds: 3600, path: token}
    - configMap:
        name: covey-authority
        items: [{key: authorities.pem, path: authorities.pem}]
{{- end }}

{{/* How a part finds the controller, and joins. */}}
{{- define "covey.join" -}}
- --controller=https://covey-controller.covey-system.svc:52414
- --token-file=/var/run/covey/token
- --authority-file=/var/run/covey/authorities.pem
{{- end }}
