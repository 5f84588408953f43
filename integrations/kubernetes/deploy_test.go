package main

import (
	"os"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

// podSpec is what tests look at of a pod.
type podSpec struct {
	SecurityContext struct {
		RunAsNonRoot bool `yaml:"runAsNonRoot"`
	} `yaml:"securityContext"`
	AutomountServiceAccountToken *bool `yaml:"automountServiceAccountToken"`
	HostNetwork                  bool  `yaml:"hostNetwork"`
	HostPID                      bool  `yaml:"hostPID"`
	Containers                   []struct {
		Args            []string
		SecurityContext struct {
			Privileged               bool
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Add, Drop []string }
		} `yaml:"securityContext"`
		Resources struct{ Limits map[string]string }
	}
	Volumes []struct {
		HostPath struct{ Path string } `yaml:"hostPath"`
	}
}

// checkUnprivileged fails unless the pod has one container without any privilege.
func checkUnprivileged(t *testing.T, pod podSpec) {
	t.Helper()
	if len(pod.Containers) != 1 || pod.HostNetwork || pod.HostPID ||
		pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Fatalf("%+v", pod)
	}
	context := pod.Containers[0].SecurityContext
	if context.Privileged || !context.ReadOnlyRootFilesystem ||
		context.AllowPrivilegeEscalation == nil || *context.AllowPrivilegeEscalation ||
		len(context.Capabilities.Add) > 0 ||
		!slices.Equal(context.Capabilities.Drop, []string{"ALL"}) {
		t.Fatalf("%+v", context)
	}
}

func read(t *testing.T, path string, into any) {
	data, err := os.ReadFile(path)
	must(t, err)
	must(t, yaml.Unmarshal(data, into))
}

func TestTheDaemonSetIsUnprivilegedAndItsOptionsAreKnown(t *testing.T) {
	var set struct {
		Spec struct{ Template struct{ Spec podSpec } }
	}
	read(t, "deploy/daemonset.yaml", &set)
	pod := set.Spec.Template.Spec
	checkUnprivileged(t, pod)
	log := &record{}
	o, err := parse(pod.Containers[0].Args, log)
	if err != nil {
		t.Fatal(log)
	}
	var paths []string
	for _, volume := range pod.Volumes {
		paths = append(paths, volume.HostPath.Path)
	}
	wanted := []string{"/var/lib/kubelet/device-plugins", o.cdiDir, "/run/ring3"}
	if !slices.Equal(paths, wanted) {
		t.Fatalf("mounts %v", paths)
	}
}

func TestTheExampleIsAnUnprivilegedPodThatAsksForADisk(t *testing.T) {
	var pod struct{ Spec podSpec }
	read(t, "deploy/pod.yaml", &pod)
	checkUnprivileged(t, pod.Spec)
	if !pod.Spec.SecurityContext.RunAsNonRoot || len(pod.Spec.Volumes) > 0 ||
		pod.Spec.Containers[0].Resources.Limits["ring3.dev/disk"] != "1" {
		t.Fatalf("%+v", pod)
	}
}
