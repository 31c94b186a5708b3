// Package manifest reads the examples, and answers what a kubelet would make of the gate's container.
package manifest

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Decode reads one YAML document into one of k8s.io/api's types. A field that the type does not have in that spelling, a
// field given twice and a value of another kind are errors, as with kubectl apply --validate=strict.
func Decode[T any](text []byte) (*T, error) {
	var object T
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	strict, err := json.UnmarshalStrict(data, &object)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, err
	}
	return &object, nil
}

// GateName is the name of the gate's container in every example.
const GateName = "gate"

// Pod is the pod of a DaemonSet. Its methods read and never change it.
type Pod struct{ corev1.PodSpec }

// PodOf decodes a DaemonSet.
func PodOf(text []byte) (Pod, error) {
	ds, err := Decode[appsv1.DaemonSet](text)
	if err != nil {
		return Pod{}, err
	}
	return Pod{ds.Spec.Template.Spec}, nil
}

// Gate is the gate's container, wherever it stands.
func (p Pod) Gate() (*corev1.Container, error) {
	for _, list := range [][]corev1.Container{p.InitContainers, p.Containers} {
		for i := range list {
			if list[i].Name == GateName {
				return &list[i], nil
			}
		}
	}
	return nil, fmt.Errorf("no container is called %s", GateName)
}

// Volume is the pod's volume of that name.
func (p Pod) Volume(name string) (*corev1.Volume, error) {
	for i := range p.Volumes {
		if p.Volumes[i].Name == name {
			return &p.Volumes[i], nil
		}
	}
	return nil, fmt.Errorf("no volume is called %s", name)
}

// HostPath is where on the host a path of the container lies: on the deepest mount above it. It is empty if that is no
// hostPath.
func (p Pod) HostPath(c *corev1.Container, path string) string {
	mount := MountOf(c, path)
	if mount == nil {
		return ""
	}
	volume, err := p.Volume(mount.Name)
	if err != nil || volume.HostPath == nil {
		return ""
	}
	rest, _ := filepath.Rel(mount.MountPath, path)
	return filepath.Join(volume.HostPath.Path, mount.SubPath, rest)
}

// MountOf is the deepest mount at or above a path of the container; nil means its root file system.
func MountOf(c *corev1.Container, path string) *corev1.VolumeMount {
	var deepest *corev1.VolumeMount
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		if Within(path, m.MountPath) && (deepest == nil || len(m.MountPath) > len(deepest.MountPath)) {
			deepest = m
		}
	}
	return deepest
}

// Within says whether path is dir or below it.
func Within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// Fields are the values that the downward API would have, by field path.
type Fields map[string]string

// Environment is the container's environment, in order. A field that is not known is an error.
func Environment(c *corev1.Container, fields Fields) ([]string, error) {
	var env []string
	for _, v := range c.Env {
		value := v.Value
		if v.ValueFrom != nil {
			ref := v.ValueFrom.FieldRef
			if ref == nil {
				return nil, fmt.Errorf("variable %s does not come from a field of the pod", v.Name)
			}
			known := false
			if value, known = fields[ref.FieldPath]; !known {
				return nil, fmt.Errorf("variable %s: the value of %s is not known", v.Name, ref.FieldPath)
			}
		}
		env = append(env, v.Name+"="+value)
	}
	return env, nil
}

var reference = regexp.MustCompile(`\$\$\([\w.-]+\)|\$\([\w.-]+\)`)

// Args are the container's arguments with $(NAME) replaced from env. A name that env does not have stays as it is
// written, and $$(NAME) becomes $(NAME), as kubelet has it.
func Args(c *corev1.Container, env []string) []string {
	values := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		values[name] = value
	}
	var args []string
	for _, arg := range c.Args {
		args = append(args, reference.ReplaceAllStringFunc(arg, func(ref string) string {
			if strings.HasPrefix(ref, "$$") {
				return ref[1:]
			}
			if value, ok := values[ref[2:len(ref)-1]]; ok {
				return value
			}
			return ref
		}))
	}
	return args
}

// Flag is the value of a flag among args, or fallback.
func Flag(args []string, name, fallback string) string {
	value := fallback
	for _, arg := range args {
		if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			value = v
		}
	}
	return value
}
